"""The classes of the built-in data set, in label order (sorted by id, like ImageNet's).

No class is the mirror image of a different one, because training flips half of its images.
"""

from __future__ import annotations

CLASSES = {
    "bicycle": "bicycle lane",
    "crosswalk": "pedestrian crossing",
    "deer": "wild animals",
    "no-entry": "no entry for vehicles",
    "priority": "priority road",
    "roadworks": "road works",
    "roundabout": "roundabout ahead",
    "speed-30": "speed limit 30",
    "speed-50": "speed limit 50",
    "speed-80": "speed limit 80",
    "stop": "stop and give way",
    "yield": "give way",
}
IDS = tuple(CLASSES)


def class_list() -> str:
    """Return the text of `classes.txt`: one line per class, tabs between index, id and words."""
    return "".join(f"{label}\t{id_}\t{CLASSES[id_]}\n" for label, id_ in enumerate(IDS))


def picture_path(split: str, index: int) -> str:
    """Return the path of an image inside the set: its class follows from its number."""
    id_ = IDS[index % len(IDS)]
    return f"{split}/{id_}/{id_}_{index:06}.jpg"
