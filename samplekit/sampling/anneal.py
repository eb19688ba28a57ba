"""`anneal`: particles down a path of noise levels or up to a target from a base."""

import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from samplekit.core.errors import SettingsError, TargetError
from samplekit.core.protocols import BlockTarget, DensityTarget, ScoreTarget
from samplekit.kernels.base import unlearned
from samplekit.sampling.anneal_program import Cloud, Plan, Route, begin, descend, finish
from samplekit.sampling.cache import use_cache
from samplekit.sampling.devices import deal, read_devices, row_mesh, row_sharding
from samplekit.sampling.labels import label
from samplekit.sampling.progress import Progress
from samplekit.sampling.run import Block, build_tree, group_attrs
from samplekit.sampling.settings import (
    check_fit,
    describe_kernel,
    make_key,
    make_settings,
)
from samplekit.sampling.threads import make_pool
from samplekit.sampling.view import as_pytree, with_space
from samplekit.targets.paths import check_levels, langevin_step
from samplekit.targets.space import make_space

if TYPE_CHECKING:
    import xarray as xr

# A call of the program takes about this long, so that progress is seen and Ctrl-C is heard.
CALL_SECONDS = 0.5
# A call returns at most this many levels, and bytes of a kept trajectory.
MOST_LEVELS, CALL_BYTES = 256, 64 * 2**20


def anneal(
    path: Any,
    kernel: Any = None,
    *,
    steps: int = 100,
    particles: int = 1000,
    seed: Any = 0,
    keep: bool = False,
    denoise: bool = True,
    resample: bool = False,
    threshold: float = 0.5,
    devices: Any = None,
    cache: bool = True,
    progress: bool = True,
) -> "xr.DataTree":
    """Take particles along a path of targets, with any kernel; return an ArviZ DataTree.

    Down noise levels this is annealed Langevin; from a base to a target along inverse
    temperatures it is annealed importance sampling (AIS), or with `resample` sequential Monte
    Carlo (SMC), and gives log Z, the log of the target's integral.

    Parameters
    ----------
    path
        `sk.noise_path(family, levels)`, `sk.tempered_path(target, base)`, the family of a
        noise-conditional network, or an object of your own (see `samplekit.targets.paths`).
    kernel
        None is `Langevin` down noise levels, with the step of the NCSNv2 rule, and `MALA()` along
        temperatures. A step size means the last level, elsewhere it is σ_i/σ_L times that
        (α_i = ε σ_i²/σ_L²); one left open is tuned in the first half of each level's steps, over
        all particles. No metric is learned here.
    steps
        Steps of the kernel at each level.
    particles
        Particles; they are the chains of the result.
    seed
        An integer or a JAX key; the same seed gives the same particles.
    keep
        Keep the positions at the start and after each level, in the group `path_posterior` (one
        draw for each).
    denoise
        End a noise path by Tweedie's step x + σ_L² s(x), which removes the last noise.
    resample
        Resample a tempered path when its weights degenerate, and at its end, so that the result
        is unweighted. By BlackJAX's multinomial scheme: for the others no error of log Z is known.
    threshold
        Resample when the effective size falls below this part of the particles.
    devices, cache, progress
        As in `sample`.

    Returns
    -------
    A DataTree: `posterior` (chain = particle, one draw); `path`, one row a level (acceptance,
    step size, proposals that were not finite; effective size and log Z so far); on tempered paths
    `log_weight` in `sample_stats`, and `log_z`, `log_z_error`, `ess` in the attributes. The
    attribute `nonfinite_particles` counts those that ended as NaN or infinite.

    Notes
    -----
    w = Π_k p_k(x_{k−1}) / p_{k−1}(x_{k−1}), Ẑ = Z_0 mean(w): Neal 2001,
    doi:10.1023/A:1008923215028; with resampling Del Moral, Doucet and Jasra 2006,
    doi:10.1111/j.1467-9868.2006.00553.x. The error of log Ẑ is √V,
    V = 1 − (n/(n−1))^{r+1} (1 − Σ_e W_e²), W_e the share of the weight that descends from the
    start e, r the number of resamplings (Lee and Whiteley 2018, doi:10.1093/biomet/asy028);
    without resampling it is the delta method. It is honest as long as the effective size is not
    small: weights that were never seen have no error. Annealed Langevin: Song and Ermon 2019,
    arXiv:1907.05600.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> family = sk.targets.noised_mixture([1, 4], [[-5.0, -5.0], [5.0, 5.0]])
    >>> path = sk.noise_path(family, np.geomspace(20, 0.1, 20))
    >>> out = sk.anneal(path, particles=500, progress=False)
    >>> out["posterior"]["x"].shape
    (500, 1, 2)
    """
    levels = _check(path, steps, particles, threshold)
    devices = read_devices(devices)
    key = make_key(seed)
    if cache:
        use_cache()
    path = as_pytree(path)
    journey = _Journey(path, levels, key, particles=int(particles), steps=int(steps))
    journey.take(kernel, resample=resample, keep=keep)
    journey.place(devices)
    run = journey.run(float(threshold), enabled=progress)
    return journey.tree(run, denoise=denoise and path.kind == "noise")


def _check(path: Any, steps: Any, particles: Any, threshold: Any) -> np.ndarray:
    """Refuse what is no path or no number, before anything is compiled."""
    missing = [n for n in ("at", "levels", "kind", "start") if not hasattr(path, n)]
    if missing:
        hint = "Give it levels: sk.noise_path(family, levels)." if hasattr(path, "at") else (
            "Make one with sk.noise_path(family, levels) or sk.tempered_path(target)."
        )  # fmt: skip
        raise TargetError(
            f"{type(path).__name__} is not a path: it has no {', '.join(missing)}. {hint}"
        )
    for name, value in (("steps", steps), ("particles", particles)):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < 1:
            raise SettingsError(f"{name}={value!r} is not a positive integer.")
    if particles < 2:
        raise SettingsError("particles=1 gives no error and no weights. Take at least 2.")
    if not 0 <= threshold <= 1:
        raise SettingsError(f"threshold={threshold!r} is a part of the particles, from 0 to 1.")
    return check_levels(path.levels, path.kind)


def _default_kernel(target: Any, path: Any, levels: np.ndarray, steps: int) -> Any:
    """Return the kernel that a path gets when the user names none."""
    from samplekit.kernels.langevin import MALA, Langevin

    if path.kind == "noise" and isinstance(target, ScoreTarget):
        step = getattr(path, "step_size", None)
        return Langevin(langevin_step(levels, steps) if step is None else float(step))
    if isinstance(target, BlockTarget):
        from samplekit.kernels.gibbs import Gibbs

        return Gibbs()
    return MALA()


class _Journey:
    """One call of `anneal`: the program's arguments, and what came out so far."""

    def __init__(
        self, path: Any, levels: np.ndarray, key: jax.Array, *, particles: int, steps: int
    ) -> None:
        self.path, self.levels, self.steps, self.particles = path, levels, steps, particles
        self.key = key
        shapes = jax.eval_shape(lambda p, k: p.start(k, particles), path, key)
        target = path.at(_number(levels[-1]))
        space = getattr(path, "space", None) or getattr(target, "space", None)
        if space is None:
            space = make_space(like=jax.tree.map(lambda s: np.zeros(s.shape[1:], s.dtype), shapes))
        _check_starts(shapes, space, particles)
        self.space, self.bare, self.target = space, target, with_space(target, space)
        leaves = [s.dtype for s in jax.tree.leaves(shapes)]
        floats = [t for t in leaves if jnp.issubdtype(t, jnp.floating)]
        self.dtype = np.dtype(floats[0] if floats else jnp.result_type(float))

    def take(self, kernel: Any, *, resample: bool, keep: bool) -> None:
        """Fit the kernel to the path, and plan the program."""
        if kernel is None:
            kernel = _default_kernel(self.bare, self.path, self.levels, self.steps)
        check_fit(self.bare, kernel)
        self.original = kernel = unlearned(kernel)
        prepared = kernel.prepare(self.space.size, self.dtype) if _ours(kernel) else kernel
        self.kernel = jax.tree.map(np.asarray, prepared)
        noise = self.path.kind == "noise"
        weighted = not noise and isinstance(self.target, DensityTarget)
        if resample and not weighted:
            raise SettingsError(
                "resample=True needs weights, which only densities along temperatures have, and "
                "this path has none. Leave it out."
            )
        frame = self.particles * self.space.size * self.dtype.itemsize if keep else 1
        tunes = bool(getattr(kernel, "tunes_step", False))
        self.plan = Plan(
            particles=self.particles,
            flat=bool(getattr(kernel, "flat", False)),
            space=self.space,
            noise=noise,
            weighted=weighted,
            resamples=bool(resample),
            goal=kernel.goal(self.space.size) if tunes else None,
            tunes=tunes,
            keep=keep,
            capacity=max(1, min(MOST_LEVELS, len(self.levels), CALL_BYTES // frame)),
        )

    def place(self, devices: Sequence[Any] | None) -> None:
        """Choose the devices: as many as divide the particles."""
        self.mesh = row_mesh(devices, self.particles)

    def _placed(self, tree: Any, *, split: bool) -> Any:
        # A copy, as what is placed is given away to the program.
        sharding = row_sharding(self.mesh, axis=0 if split else None) if self.mesh else None
        return jax.device_put(tree, sharding, may_alias=False)

    def _begin(self, threshold: float, first: int) -> tuple[Cloud, Route]:
        """Draw the start, while the program of the levels is compiled by going through none."""
        with make_pool(1) as pool:
            start = pool.submit(begin, self.plan, self.path, self.key)
            shapes = jax.eval_shape(functools.partial(begin, self.plan), self.path, self.key)[0]
            nowhere = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
            none = np.asarray([first, first], np.int32)
            descend(self.plan, self._route(self.key, threshold), self._cloud(nowhere), none)
            x, step_key = start.result()
        return self._cloud(x), self._route(step_key, threshold)

    def _cloud(self, x: Any) -> Cloud:
        # Of NumPy, all of it: JAX would compile a program for each of them.
        n = self.particles
        return Cloud(
            position=self._placed(x, split=True),
            kernel=self._placed(self.kernel, split=False),
            log_weight=self._placed(np.zeros(n, self.dtype), split=True),
            log_z=self._placed(np.zeros((), self.dtype), split=False),
            origin=self._placed(np.arange(n, dtype=np.int32), split=True),
            resampled=self._placed(np.zeros((), np.int32), split=False),
        )

    def _route(self, key: jax.Array, threshold: float) -> Route:
        route = Route(
            self.path, _number(self.levels, self.dtype), key,
            np.asarray(self.steps, np.int32), _number(threshold, self.dtype),
        )  # fmt: skip
        return deal(route, self.mesh, axis=None)

    def run(self, threshold: float, *, enabled: bool) -> dict[str, Any]:
        """Go all the way; return the cloud, what each level said, and the frames."""
        first = int(self.path.kind == "temperature")
        cloud, route = self._begin(threshold, first)
        frames = [jax.tree.map(np.array, cloud.position)] if self.plan.keep else []
        total, at = (len(self.levels) - first) * self.steps, first
        rows: list[dict[str, np.ndarray]] = []
        since = time.perf_counter()
        with Progress(total, enabled=enabled, unit="steps") as bar:
            bar.phase("compiling")
            quantum = 1.0
            while at < len(self.levels):
                end = min(len(self.levels), at + min(self.plan.capacity, max(1, int(quantum))))
                began = time.perf_counter()
                cloud, out = descend(self.plan, route, cloud, np.asarray([at, end], np.int32))
                out = jax.tree.map(lambda a, count=end - at: np.asarray(a)[:count], out)
                spent = time.perf_counter() - began
                rows.append(out["stats"])
                frames += [out["position"]] if self.plan.keep else []
                # The first call compiles: it says only how long a level takes at most.
                quantum = max(quantum, (end - at) * CALL_SECONDS / max(spent, 1e-6))
                quantum = min(quantum, 4 * max(1, end - at)) if at > first else max(quantum, 2)
                at = end
                bar.phase("annealing")
                bar.update((at - first) * self.steps, acceptance=_latest(rows, "acceptance_rate"),
                           step_size=_latest(rows, "step_size"))  # fmt: skip
        stats = {name: np.concatenate([r[name] for r in rows]) for name in rows[0]}
        seconds = time.perf_counter() - since
        return {"cloud": cloud, "stats": stats, "frames": frames, "seconds": seconds}

    def tree(self, run: dict[str, Any], *, denoise: bool) -> "xr.DataTree":
        """Name everything and put it together."""
        import xarray as xr

        cloud, n = run["cloud"], self.particles
        x = cloud.position
        last = _number(self.levels[-1], self.dtype) if denoise else None
        values = {k: np.asarray(a) for k, a in finish(self.plan, self.path, last, x).items()}
        shapes = {k: jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for k, a in values.items()}
        groups: dict[str, Block] = {"posterior": {k: a[:, None] for k, a in values.items()}}
        if self.plan.keep:
            groups["path_posterior"] = self._frames(run["frames"])
        facts = {"nonfinite_particles": _nonfinite(values, n)}
        if self.plan.weighted:
            groups["sample_stats"] = {"log_weight": np.asarray(cloud.log_weight)[:, None]}
            run["stats"]["log_z"] += np.float64(getattr(self.path, "log_normalizer", 0.0))
            facts |= {n: float(run["stats"][n][-1]) for n in ("log_z", "log_z_error", "ess")}
        settings = make_settings(draws=1, warmup=0, chains=n, thin=1, keep_warmup=False)
        attrs = group_attrs({"sampling": run["seconds"]}, settings) | facts
        tuned = jax.tree.map(np.asarray, cloud.kernel)
        tree = build_tree(
            groups,
            label(self.target, shapes),
            sampler={},
            sampler_attrs={"kernel": describe_kernel(tuned), "steps": self.steps},
            attrs=attrs,
        )
        first = len(self.levels) - len(next(iter(run["stats"].values())))
        tree["path"] = xr.DataTree(
            xr.Dataset(
                {name: ("level", a) for name, a in run["stats"].items()},
                coords={"level": self.levels[first:]},
                attrs={"kind": self.path.kind, "steps": self.steps},
            )
        )
        return tree

    def _frames(self, frames: list[Any]) -> Block:
        """Return the kept positions, constrained, (particle, frame, ...)."""
        first, *others = frames
        stacks = [jax.tree.map(lambda a: a[None], first), *others]
        shown = [
            jax.vmap(lambda x: finish(self.plan, self.path, None, x))(stack) for stack in stacks
        ]
        names = shown[0]
        return {
            k: np.moveaxis(np.concatenate([np.asarray(s[k]) for s in shown]), 0, 1) for k in names
        }


def _number(value: Any, dtype: Any = None) -> np.ndarray:
    return np.asarray(value, jnp.result_type(float) if dtype is None else dtype)


def _ours(kernel: Any) -> bool:
    return hasattr(kernel, "prepare")


def _check_starts(shapes: Any, space: Any, particles: int) -> None:
    got = [tuple(s.shape) for s in jax.tree.leaves(shapes)]
    want = [(particles, *leaf.shape) for leaf in space.leaves]
    if got != want:
        raise TargetError(
            f"The path's start gives positions of shape {got}, but {particles} particles of this "
            f"target have {want}: one position for each, in front. Check its start(key, n)."
        )


def _latest(rows: list[dict[str, np.ndarray]], name: str) -> float | None:
    return float(rows[-1][name][-1]) if name in rows[-1] else None


def _nonfinite(values: Block, particles: int) -> int:
    """Count the particles that are lost, and refuse to return nothing but those."""
    fine = np.ones(particles, bool)
    for a in values.values():
        if a.dtype.kind == "f":
            fine &= np.isfinite(a.reshape(particles, -1)).all(1)
    if not fine.any():
        raise TargetError(
            f"None of the {particles} particles ended at a finite place. Look at the scores of the "
            "path at its levels; a step size that is too long for them does this as well."
        )
    return int((~fine).sum())
