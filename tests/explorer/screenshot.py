"""The picture of the explorer's page in the documentation, by the model in the box.

python -m tests.explorer.screenshot docs/images/explorer.png
"""

from __future__ import annotations

import sys
from urllib.parse import quote

from playwright.sync_api import expect, sync_playwright

from pushdown_lm.explorer.launch import load_library, serve_in_background
from pushdown_lm.search.packaged import DEFAULT_MODEL
from tests.explorer.test_page import CHROMIUM, FLAGS

SENTENCE = "After the boys left the room became quiet."
STEP = 7
"""Where the garden path is left."""


def main(path: str) -> None:
    library = load_library([DEFAULT_MODEL], threshold=10.0)
    with serve_in_background(library) as address, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1000, "height": 960})
        page.goto(f"{address}#s={quote(SENTENCE)}&step={STEP}")
        expect(page.get_by_role("status")).to_contain_text("log2 p")
        expect(page.locator("#place")).to_contain_text(f"{STEP} of")
        page.screenshot(path=path)
        browser.close()
    library.close()


if __name__ == "__main__":
    main(sys.argv[1])
