"""A real Chromium for tests of pages: found on this machine, driven by playwright; otherwise the tests say why not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIETLY = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

OVERLAPS = """
() => {
  const boxes = [];
  for (const text of document.querySelectorAll('svg text')) {
    if (!text.textContent.trim()) continue;
    const box = text.getBoundingClientRect();
    if (box.width) boxes.push({box, owner: text.ownerSVGElement, text: text.textContent});
  }
  const found = [];
  for (let i = 0; i < boxes.length; i++)
    for (let j = i + 1; j < boxes.length; j++) {
      const a = boxes[i].box, b = boxes[j].box;
      if (boxes[i].owner !== boxes[j].owner) continue;
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 3) found.push(boxes[i].text + ' / ' + boxes[j].text);
    }
  return found;
}
"""

SPILLS = """
() => {
  const found = [];
  for (const svg of document.querySelectorAll('figure > svg')) {
    const whole = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll('text')) {
      const box = text.getBoundingClientRect();
      if (box.width && (box.left < whole.left - 1 || box.right > whole.right + 1 || box.bottom > whole.bottom + 2))
        found.push(text.textContent);
    }
  }
  return found;
}
"""

COVERED = """
() => {
  const blocks = [...document.querySelectorAll('main > section > *, main > section figure > *')];
  const found = [];
  for (const a of blocks) for (const b of blocks) {
    if (a === b || a.contains(b) || b.contains(a)) continue;
    const x = a.getBoundingClientRect(), y = b.getBoundingClientRect();
    if (!x.width || !y.width) continue;
    const wide = Math.min(x.right, y.right) - Math.max(x.left, y.left);
    const high = Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top);
    if (wide > 2 && high > 2) found.push(a.outerHTML.slice(0, 80) + ' / ' + b.outerHTML.slice(0, 80));
  }
  return found.slice(0, 5);
}
"""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is skipped, with the reason, where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no page was opened")
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(
            f"no Chromium on this machine ({', '.join(NAMES)}; 'make browser' installs one): no page was opened"
        )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=QUIETLY)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, address: str | Path, width: int = 1280, dark: bool = False) -> Iterator[tuple[Any, list[str]]]:
    """A page at a width, light or dark, and what the browser complained about."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    complaints: list[str] = []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url[:80]}"))
    page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
    yield page, complaints
    context.close()


FAINT = """
() => {
  const light = part => { part /= 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; };
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const shine = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const ground = node => {
    for (; node; node = node.parentElement) {
      const found = parse(getComputedStyle(node).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const found = new Set();
  for (const node of document.querySelectorAll('h1,h2,p,li,a,th,td,caption,summary,figcaption,span,code,svg text')) {
    if (!node.textContent.trim() || !node.getBoundingClientRect().width) continue;
    const style = getComputedStyle(node);
    const ink = shine(parse(node.closest('svg') ? style.fill : style.color)), paper = shine(ground(node));
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (contrast < 4.5) found.add(node.tagName + ' ' + contrast.toFixed(1) + ' ' + node.textContent.slice(0, 30));
  }
  return [...found];
}
"""


def faults_of(page: Any) -> dict[str, Any]:
    """What is wrong with a page as people see it; all empty when nothing is."""
    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return {
        "wider than the screen": max(0, wide),
        "texts over each other": page.evaluate(OVERLAPS),
        "texts outside of their picture": page.evaluate(SPILLS),
        "blocks over each other": page.evaluate(COVERED),
        "texts that are too faint": page.evaluate(FAINT),
    }
