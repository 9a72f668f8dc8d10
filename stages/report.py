"""Stage report: one self-contained page about the run."""

from app.report import write
from config.errors import run_main
from stages.process import start


def main() -> None:
    paths = start("report")
    write(paths.run, paths.run / "report.html")
    print(f"report: {paths.run / 'report.html'}")


if __name__ == "__main__":
    run_main(main)
