"""Programs that turn a folder of images into a data set ready for training: `python -m data_prep.NAME`."""
