"""The checks of `python -m data_prep.verify`, form by form."""
