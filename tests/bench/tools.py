"""Imports bench/compare and the scripts, which have no .py in their names."""

import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "compare"))


def load(path):
    loader = importlib.machinery.SourceFileLoader(path.rsplit("/", 1)[-1], str(ROOT / path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def refusal(parse, *arguments):
    """(exit status, what was said on stderr) of arguments that are refused."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parse(list(arguments))
    except SystemExit as stop:
        return stop.code, said.getvalue()
    raise AssertionError("not refused: %s" % (arguments,))
