"""The library behind the RN50 workbook: ResNet-50 v1.5, its training loop and its input pipelines.

Importing this package imports nothing else: no framework, not even NumPy.
"""

__version__ = "0.1.0"
