"""The data set on disk: record files, indexes, the order of reading, a data root opened."""
