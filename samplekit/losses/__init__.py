"""Losses that fit a score or an energy to data without its normaliser; all are pure functions.

A score is a function of one sample that returns ∇ log p, shaped as the sample: a vector, an image
or a number. `data` holds samples along its first axis; a loss is the mean over them. Signs are
those of p ∝ exp(−E): a score is −∇E, and `score_of(energy)` makes every loss one for energies.

| loss | fits the score of | cost, in scores (forward) | needs |
|---|---|---|---|
| `explicit` | the data | 1 | the true score |
| `implicit` | the data | 1 + d | a smooth score |
| `hutchinson`, `sliced_vr`, `sliced` | the data | 2 with one probe | a smooth score |
| `finite_difference_sliced` | the data, off by O(step²) | 2 | a score |
| `finite_difference_energy` | the data, off by O(step²) | 3 energies | an energy |
| `denoising`, `denoising_general` | the data plus noise | 1 | a noise scale |
| `noise_conditional` | the data plus each noise | 1 | noise scales |
| `contrastive` | the data | 2 energies | draws of the model |
"""

from samplekit.losses.differences import finite_difference_energy, finite_difference_sliced
from samplekit.losses.divergence import explicit, hutchinson, implicit, sliced, sliced_vr
from samplekit.losses.energy import contrastive, score_of
from samplekit.losses.noisy import denoising, denoising_general, noise_conditional

__all__ = [
    "contrastive",
    "denoising",
    "denoising_general",
    "explicit",
    "finite_difference_energy",
    "finite_difference_sliced",
    "hutchinson",
    "implicit",
    "noise_conditional",
    "score_of",
    "sliced",
    "sliced_vr",
]
