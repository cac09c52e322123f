"""Finds the Chrome or Chromium that the pages are opened in; run as a program it also installs Debian's where it may."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from playwright.sync_api import sync_playwright

NAMES = ("google-chrome", "google-chrome-stable", "chromium", "chromium-browser")
MISSING = (
    "no Chrome or Chromium was found: install one (`apt-get install chromium`, or `playwright install chromium` from "
    ".nox/environment/bin), or name it with CHROME_PATH=FILE"
)


class NoBrowser(Exception):
    """One line: which browser is missing, and what to do."""


def find(own: str) -> str:
    """The browser's file: what CHROME_PATH names, or else Playwright's `own`, or else what is on the PATH.

    Raises NoBrowser.
    """
    if named := os.environ.get("CHROME_PATH"):
        if found := shutil.which(named):
            return found
        raise NoBrowser(f"CHROME_PATH={named} is not a program: name the file of Chrome or Chromium, or unset it")
    for name in (own, *NAMES):
        if found := shutil.which(name):
            return found
    raise NoBrowser(MISSING)


def find_or_install(own: str) -> str:
    """As `find`; where there is none, Debian's is installed, if root runs this. Raises NoBrowser."""
    try:
        return find(own)
    except NoBrowser:
        if os.environ.get("CHROME_PATH") or os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise
    print("no Chrome or Chromium was found; installing Debian's with apt-get", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "chromium"]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        if done.returncode:
            raise NoBrowser(f"`apt-get {command[0]}` ended with status {done.returncode}, and {MISSING}")
    return find(own)


if __name__ == "__main__":
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    try:
        print(find_or_install(own))
    except NoBrowser as missing:
        sys.exit(str(missing))
