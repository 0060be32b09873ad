"""What `python -m data_prep.verify` looks at, form by form."""
