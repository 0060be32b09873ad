"""The course itself: its notebooks built, checked, run and shown as pages."""
