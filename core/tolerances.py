"""Every tolerance there is, each with its reason. All were chosen before what they judge was measured, but for `NARROW_MARGINS`
and `TRUTH_RELATIVE_POSITION`, which say so, as `over_rows` of core/spread.py does of what the margins are of.

A floor is the measured noise of float32 itself: the largest distance of Hugging Face's float32 passes from its float64
one, for this checkpoint, at this place. An error conforms when it is at most the stated multiple of its floor.
"""

from __future__ import annotations

from typing import Final

# Logits, in floors of their prompt. Sums in another order, another exp and another rounding of the RoPE angles each cost
# about as much again as Hugging Face's own noise, and the maximum over 48 x V logits has a tail: 8 leaves room for all
# of these. One product in bfloat16 is 4 decimal digits, or some 1000 floors, away. Where prefill is held to
# streaming, so are the caches of a prompt, in floors of their own: there too the largest of many thousand values counts.
LOGIT_FLOORS: Final = 8.0

# A value at an anchor, in floors of its row. The same reasons as for the logits; twice as much, because a row has some
# hundred values instead of a million and the largest of so few says less surely what the noise is.
ANCHOR_FLOORS: Final = 16.0

# What computes in bf16 or f16 is held to Hugging Face in the same type: its errors are spread no worse than those of the
# worst of a few passes of it, by these factors: of the root mean square, the median, the 99th percentile and the largest error, at
# each anchor and in the logits over all rows that are compared. A few rows that are sensitive weigh most, so the figures of right
# passes differ by more than a rounding or two. The first margins, 1.5, 1.5, 2 and 4, were guessed, and right graphs of 2 of 3 random
# models in f16 were beyond them. These replaced them, by what was then measured on Hugging Face alone: a pass beside the worst of the
# others, at the 4,235 anchors and passes of 25 random models in each type, is up to 1.95, 2.24, 1.91 and 3.21 times as far off. They
# are about half as much again, and twice for the largest error. (Holding the largest error of each row to that row's own alarms on
# Hugging Face itself: it is up to 25 times as large as in any other pass.)
NARROW_LARGEST: Final = 6.0
NARROW_MARGINS: Final = (3.0, 3.0, 3.0, NARROW_LARGEST)
# Rows from which on how errors are spread says something. Of fewer, each is held to the largest alone.
NARROW_ROWS: Final = 8

# One rounding, relative to a row's largest value. A floor is never less than what a sum's roundings come to when its
# terms are added one after the other (the root of their number), and one rounding where nothing is summed: what is
# copied exactly on one side (an embedding) may be rounded once on the other. And never less than the smallest normal
# number, for rows of zeros.
ROUNDING: Final = 2.0**-24
NARROW_ROUNDING: Final = {"bf16": 2.0**-8, "f16": 2.0**-11, "int8": ROUNDING}  # the most; evenly spread below that
# Where keys and values are kept in int8, these alone are rounded to less: by up to half of a step, of which the largest has 127.
INT8_ROUNDING: Final = 1 / 254
# What two graphs make of the same keys, in steps. Where a quotient is next to the middle of two integers they may take either, and that
# is one number of some ten thousand: of those of a slot and a head, the root of the mean square is at most half a step. What cuts off in
# place of rounding takes another integer for half of them, which is 0.7.
INT8_SAME_STEPS: Final = 1.0
INT8_SAME_RMS: Final = 0.5
SMALLEST: Final = 2.0**-126

# The same operations on the same inputs by two compilers, relative to the largest value: sums of up to some 10^4 terms in
# another order stay under 2^-16; a bfloat16 rounding, the smallest fault there is a name for, is 2^-9. This lies between.
SAME_INPUTS: Final = 2.0**-12
# The same of a value in bf16 or f16, which is rounded: at most a few roundings, where graphs round in other places.
NARROW_SAME_INPUTS: Final = {"bf16": 2.0**-6, "f16": 2.0**-9}
# And as root mean square, of a graph that rounds where the oracle does. What is summed in float32 by both is rounded alike but for
# one value in some thousands, which is next to a boundary: that makes a twentieth of this. One rounding more, such as of a partial
# sum, or a logistic in bf16, makes of it one and a half times as much.
NARROW_SAME_RMS: Final = {"bf16": 2.0**-9, "f16": 2.0**-12}

# What a graph has to hide may change what it returns by roundings, relative to the largest value: a softmax may be shifted by
# what it then gives no weight. Where a graph computes in bfloat16 or float16, one of these is up to 2^-9. A mask that lets
# through 1 of 100 or more of what it hides is beyond either; what is less is held to the reference.
HIDDEN: Final = SAME_INPUTS
HIDDEN_NARROW: Final = 2.0**-7

# A masked score is right if softmax makes it exactly 0: float32's exp is 0 below -104.
MASKED_BELOW: Final = 104.0

# transformers' float32 logits agree with its float64 ones to about 2e-6 of their size. A floor of more than this share of
# the largest logit, or of the largest entry of the caches, is no float32 noise: the truth itself would be in doubt.
TRUTH_RELATIVE: Final = 1e-4
# RoPE's fastest pair is turned by the position in radians, which float32 rounds: its sine and cosine are off by up to that. Chosen
# after a prompt of 16,337 tokens was beyond the limit above, with 1.9e-4.
TRUTH_RELATIVE_POSITION: Final = ROUNDING
