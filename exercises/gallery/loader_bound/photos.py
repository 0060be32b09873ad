"""Write 264 photos of 2400 x 1800 pixels, and copies with a shorter side of 256 pixels."""

from pathlib import Path

from PIL import Image

for name, size in {"large": (2400, 1800), "small": (341, 256)}.items():
    Image.effect_noise((600, 450), 40).convert("RGB").resize(size).save(f"{name}.jpg")
    for number in range(264):
        path = Path(name, "val" if number < 8 else "train", f"class{number % 2}", f"{number}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.hardlink_to(f"{name}.jpg")
