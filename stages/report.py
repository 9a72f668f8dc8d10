"""Stage report: one self-contained page about the run, with a look at its data."""

from typing import Any

from app.report import write
from config.errors import UserError, run_main
from config.files import write_json
from config.paths import TRAINING_STAGES, RunPaths
from config.profile import read_section
from data.config import DataConfig
from data.peek import look
from data.tokenizer import Tokenizer
from stages.process import start


def main() -> None:
    paths = start("report")
    write_json(paths.peek, peek(paths))
    write(paths.run, paths.run / "report.html")
    print(f"report: {paths.run / 'report.html'}")


def peek(paths: RunPaths) -> dict[str, Any]:
    """What `data.peek` finds, or why it finds nothing: a source that is gone by now is no reason for having no page."""
    try:
        data = read_section(paths, "data", DataConfig)
        return look(data, Tokenizer.load(paths.tokenizer), {stage: paths.manifest(stage) for stage in TRAINING_STAGES})
    except UserError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    run_main(main)
