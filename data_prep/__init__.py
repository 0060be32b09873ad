"""Programs that make a folder of images ready for training: `python -m data_prep.NAME`."""
