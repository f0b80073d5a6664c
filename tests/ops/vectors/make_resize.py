#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes resize_nearest.txt: which element Resize takes with mode nearest, by exact arithmetic on the sizes.

    python3 tests/ops/vectors/make_resize.py

A line is: coordinates, rounding, elements, places, then the element that each place shows.
"""
import math
import os
from fractions import Fraction as F

# With the first six, each pair of coordinates and rounding goes wrong somewhere in rounded arithmetic.
SIZES = [(50, 55), (39, 45), (50, 14), (30, 11), (49, 2), (59, 6), (14, 18), (7, 29), (29, 7), (1, 5), (5, 1), (3, 49),
         (13, 88)]
COORDINATES = {
    "half_pixel": lambda x, i, o: (x + F(1, 2)) * F(i, o) - F(1, 2),
    "half_pixel_symmetric": lambda x, i, o: (x + F(1, 2)) * F(i, o) - F(1, 2),  # what sizes are given to is not shifted
    "pytorch_half_pixel": lambda x, i, o: (x + F(1, 2)) * F(i, o) - F(1, 2) if o > 1 else F(0),
    "align_corners": lambda x, i, o: F(x * (i - 1), o - 1) if o > 1 else F(0),
    "asymmetric": lambda x, i, o: F(x * i, o),
    "tf_half_pixel_for_nn": lambda x, i, o: (x + F(1, 2)) * F(i, o),
}
ROUNDINGS = {
    "round_prefer_floor": lambda at: math.ceil(at - F(1, 2)),
    "round_prefer_ceil": lambda at: math.floor(at + F(1, 2)),
    "floor": math.floor,
    "ceil": math.ceil,
}

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "resize_nearest.txt"), "w") as out:
    for coordinates, place in COORDINATES.items():
        for rounding, nearest in ROUNDINGS.items():
            for before, after in SIZES:
                taken = [min(max(nearest(place(x, before, after)), 0), before - 1) for x in range(after)]
                print(coordinates, rounding, before, after, *taken, file=out)
