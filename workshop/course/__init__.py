"""The course itself: its notebooks built, checked, run and shown as pages."""

import sys

# jsonschema, which nbformat loads, would compile grammars with it, for the kinds of URIs that no
# notebook has: 2 of the 3 seconds in which a command starts
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
