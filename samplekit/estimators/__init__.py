"""Estimators that fit data in closed form and end in `.target()`.

| module | what is there |
|---|---|
| domains | where a density lives: boxes, the simplex, the sphere, the torus |
| weights | boundary weights h for fits in the data's own coordinates |
| moments | Γ, g and the sandwich's middle, by autodiff, block by block |
| rows | data as chunks of one shape, over threads and devices |
| linear | the scaled solve, its condition, collinear statistics |
| quadratic | Gaussian families from second moments |
| exponential_family | `ExponentialFamily`, the scikit-learn estimator |
| family, families | `Family`, the description of a named family, and all of them |
| draws | exact samplers |
| sparse_precision, graphs | ℓ1-penalised Gaussian graphs, path and extended BIC |
| conditional | `ConditionalFamily`: natural parameters linear in covariates |
| kernel_family | `KernelExponentialFamily`: gram functions of centers on a wide Gaussian |
| placed, hyvarinen | the Hyvärinen score of any target |
| comparison, change | `compare` and `ScoreCUSUM` |
"""
