"""The problems that `python -m data_prep.verify` looks for, form by form."""
