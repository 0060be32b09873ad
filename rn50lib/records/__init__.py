"""The data set on disk: record files, their indexes, the order of reading, and a data root opened."""
