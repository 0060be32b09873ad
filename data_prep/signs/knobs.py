"""Every number that sets how hard the images are, in one place.

A probability is per image; a range is drawn from uniformly. Changing one changes the data set:
raise `VERSION` with it, so that sets drawn before are not taken for sets drawn now.
"""

from __future__ import annotations

VERSION = 3

# The image: (width, height, weight). Every fifth is turned to portrait, every 25th is grey.
SIZES = ((500, 375, 0.68), (500, 333, 0.14), (480, 360, 0.06), (500, 400, 0.06), (512, 384, 0.06))
PORTRAIT_EVERY = 5
GREY_EVERY = 25
QUALITY = (91, 95)
FULL_CHROMA = 0.5  # share of files without chroma subsampling, as photo sites write them

# The sign.
SIGN_SIZE = (0.48, 0.84)  # diameter as a share of the shorter side
SIGN_OFFSET = 0.50  # how far off centre: 1 lets it touch the edge of the central crop
ROLL = 12.0  # degrees either way, as below
YAW = 38.0
PITCH = 16.0
PERSPECTIVE = (2.6, 6.0)  # distance of the camera in sign diameters: near is a strong perspective
WEAR = (0.0, 0.40)  # dirt and fading, 1 is a ruin
DAPPLE = 0.22  # shadows of leaves on the sign
STICKER = 0.12

# What covers the sign.
OCCLUDE = 0.18
OCCLUDE_DEPTH = (0.10, 0.42)  # how far leaves or a post reach into the sign, in diameters

# What is around it.
BOARDS = 0.35  # an advertising board
OTHER_SIGNS = 0.45  # up to three signs of no class, on their own posts
COMPANION = 0.22  # a sign of no class or a plate on the same post
OBJECTS = (4, 9)  # houses, trees, lamps, cars

# Light: weight by name.
LIGHTS = {"day": 0.36, "overcast": 0.16, "golden": 0.13, "dusk": 0.10, "night": 0.13, "haze": 0.12}

# The camera.
BACKGROUND_BLUR = (0.0, 1.8)  # radius in pixels: the sign is in focus, the scene less
DEFOCUS = 0.10
DEFOCUS_RADIUS = (0.8, 2.2)
MOTION = 0.15
MOTION_LENGTH = (4, 12)  # pixels
NOISE = (4.0, 11.0)  # standard deviation in grey levels; night adds NIGHT_NOISE
NIGHT_NOISE = 4.0
EXPOSURE = (0.88, 1.28)
