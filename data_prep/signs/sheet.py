"""The contact sheet: a few pictures of every class on one page, for the README and notebook 01."""

from __future__ import annotations

import io
import os
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from data_prep.signs.assets import make_assets
from data_prep.signs.classes import CLASSES, IDS
from data_prep.signs.compose import draw_jpeg
from rn50lib.errors import UserError
from rn50lib.files import write_file

COLUMNS = 6  # classes side by side; the others follow below
EXAMPLES = 3  # pictures of each class, one below the other
THUMB = (196, 147)
GAP, MARGIN, HEADER = 8, 18, 50
PAPER, INK, GREY = (250, 250, 248), (32, 34, 38), (112, 116, 122)


def save_sheet(path: str | os.PathLike, seed: int = 0) -> str:
    """Draws the sheet into `path` (.jpg or .png) and says what it holds.

    Raises UserError if the file cannot be written or its name has another ending.
    """
    target = Path(path)
    if target.suffix.lower() not in (".jpg", ".jpeg", ".png"):
        raise UserError(f"--contact-sheet {target}: the name must end in .jpg or .png")
    if not target.parent.is_dir():
        raise UserError(f"--contact-sheet {target}: the folder {target.parent} does not exist")
    sheet = contact_sheet(seed)
    buffer = io.BytesIO()
    if target.suffix.lower() == ".png":
        sheet.save(buffer, "PNG", optimize=True)
    else:
        sheet.save(buffer, "JPEG", quality=76, optimize=True, progressive=True)
    write_file(target, buffer.getvalue())
    size = f"{sheet.width} x {sheet.height} pixels, {len(buffer.getvalue()) / 1000:.0f} KB"
    return f"{EXAMPLES} pictures of each of {len(IDS)} classes, {size}"


def contact_sheet(seed: int = 0, examples: int = EXAMPLES) -> Image.Image:
    """The first validation pictures of every class, under its id and words."""
    assets = make_assets(seed)
    bands = -(-len(IDS) // COLUMNS)
    band = HEADER + examples * (THUMB[1] + GAP) + GAP
    width = 2 * MARGIN + COLUMNS * (THUMB[0] + GAP) - GAP
    sheet = Image.new("RGB", (width, 2 * MARGIN + bands * band - 2 * GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    for label, id_ in enumerate(IDS):
        x = MARGIN + label % COLUMNS * (THUMB[0] + GAP)
        y = MARGIN + label // COLUMNS * band
        draw.text((x, y), id_, fill=INK, font=_font(20))
        draw.text((x, y + 25), CLASSES[id_], fill=GREY, font=_font(14))
        for k in range(examples):
            picture = Image.open(io.BytesIO(draw_jpeg(assets, seed, "val", label + len(IDS) * k)))
            corner = (x, y + HEADER + k * (THUMB[1] + GAP))
            sheet.paste(_thumb(picture), corner, _rounded_mask())
    return sheet


def _thumb(picture: Image.Image) -> Image.Image:
    """The picture scaled to cover THUMB, its centre kept."""
    scale = max(THUMB[0] / picture.width, THUMB[1] / picture.height)
    width, height = min(picture.width, THUMB[0] / scale), min(picture.height, THUMB[1] / scale)
    left, top = (picture.width - width) / 2, (picture.height - height) / 2
    box = (left, top, left + width, top + height)
    return picture.convert("RGB").resize(THUMB, Image.Resampling.LANCZOS, box)


def _rounded_mask() -> Image.Image:
    large = Image.new("L", (THUMB[0] * 4, THUMB[1] * 4))
    corner = (large.width - 1, large.height - 1)
    ImageDraw.Draw(large).rounded_rectangle((0, 0, *corner), 28, fill=255)
    return large.reduce(4)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    try:
        return ImageFont.load_default(size)
    except (TypeError, ImportError):  # Pillow before 10.1, or without FreeType: one small font
        return ImageFont.load_default()
