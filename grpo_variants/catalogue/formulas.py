"""Formulas that several entries of the catalogue share, in LaTeX."""

CLIP = r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1\mp 0.2) A_i)"
CLIPPED = rf"L = -\frac{{1}}{{\sum_i l_i}}\sum_{{i,t}} {CLIP}"
CLIPPED_TOKENS = CLIPPED.replace("A_i", "A_{it}")
SCORED = r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} A_i \log\pi(y_{it})"
