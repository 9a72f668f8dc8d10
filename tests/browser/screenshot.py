"""Takes a picture of the chat page, for the README: `python -m tests.browser.screenshot FILE.png [--run DIR]`.

Opens the page with the trained model (or the one in DIR), asks a few things, and saves what Chromium shows.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import sync_playwright

from config.errors import UserError, run_main
from tests.browser.conftest import CHROMIUM_FLAGS, Tab, chromium, serving

QUESTIONS = ("Hello! My name is Ada.", "What is 347 + 589?", "Write a haiku about the moon.")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshot", description=__doc__)
    parser.add_argument("file", type=Path, help="where to save the picture (.png)")
    parser.add_argument("--run", help="model to show, e.g. runs/tiny/sft")
    parser.add_argument("--ask", action="append", metavar="TEXT", help="ask this instead; may be given several times")
    parser.add_argument("--width", type=int, default=900)
    parser.add_argument("--height", type=int, default=760)
    parser.add_argument("--seed", default="1", help="seed of the replies, so that the picture can be taken again")
    parser.add_argument("--dark", action="store_true", help="as on a dark system")
    parser.add_argument("--scripted", action="store_true", help="with the scripted model of the tests")
    options = parser.parse_args(argv)
    executable = chromium()
    if not executable:
        raise UserError("found no Chromium: install Debian's package `chromium`")

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        work = Path(folder)
        if options.scripted:
            from tests.browser import scripted

            scripted.publish(work)
            served = serving("tests.browser.scripted", work, folder)
        else:
            served = serving("app.chat", work, *(("--run", options.run) if options.run else ()))
        browser = playwright.chromium.launch(executable_path=executable, headless=True, args=CHROMIUM_FLAGS)
        with served as server:
            page = browser.new_page(
                viewport={"width": options.width, "height": options.height},
                device_scale_factor=2,
                color_scheme="dark" if options.dark else "light",
            )
            page.goto(server.url)
            page.wait_for_selector("#chat .example")
            tab = Tab(page)
            tab.setting("Seed", options.seed)
            page.click("#settings >> text=Settings")
            for question in options.ask or QUESTIONS:
                tab.ask(question)
            page.wait_for_timeout(500)  # the buttons of the last message fade in
            options.file.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=options.file)
        browser.close()
    print(f"saved {options.file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    run_main(main)
