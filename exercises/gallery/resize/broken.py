"""Resize a photograph with DALI, and compare it with Pillow's (which torchvision uses)."""

import sys

import numpy as np
from nvidia.dali import fn, pipeline_def
from PIL import Image

row = np.sin(np.arange(1024) ** 2 / 1600)
photo = (128 + 100 * row[:, None] * row).astype(np.uint8)


@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def validation():
    images = fn.external_source(lambda: [photo[..., None]])
    return fn.resize(images, size=(256, 256), antialias=False)


pipeline = validation()
pipeline.build()
dali = pipeline.run()[0].as_array()[0, ..., 0].astype(int)
pillow = Image.fromarray(photo).resize((256, 256), Image.BILINEAR)
if "--no-antialias" in sys.argv:  # four pixels of the photograph for each new one
    affine = (4, 0, 0, 0, 4, 0)
    pillow = Image.fromarray(photo).transform((256, 256), Image.AFFINE, affine, Image.BILINEAR)
print(f"mean difference: {np.abs(dali - np.asarray(pillow)).mean():.1f} of 255")
