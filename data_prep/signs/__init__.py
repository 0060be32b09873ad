"""The drawing behind `data_prep.roadsigns`: sign faces, scenery, one image from one number.

Importing this package imports nothing else; `classes` and `knobs` need the standard library only.
"""
