"""What to do next, in the words of the library that made the run."""

from samplekit.diagnostics.origin import Sampler

# One row a library: how its users ask for more chains, draws, warm-up, a higher acceptance rate
# and a deeper tree.
_WORDS: dict[str, dict[str, str]] = {
    "samplekit": {
        "chains": "sk.sample(target, chains=4)",
        "draws": "sk.resume(run, target, draws={draws})",
        "warmup": "sk.sample(target, warmup={warmup})",
        "accept": "sk.{kernel}(target_accept={accept})",
        "depth": "sk.NUTS(max_treedepth={depth})",
        "starts": "init=",
        "metric": 'sk.NUTS(metric="dense")',
    },
    "pymc": {
        "chains": "pm.sample(chains=4)",
        "draws": "pm.sample(draws={draws})",
        "warmup": "pm.sample(tune={warmup})",
        "accept": "pm.sample(target_accept={accept})",
        "depth": "pm.sample(nuts={{'max_treedepth': {depth}}})",
        "starts": "initvals=",
        "metric": 'pm.sample(init="jitter+adapt_full")',
    },
    "numpyro": {
        "chains": "MCMC(kernel, num_chains=4)",
        "draws": "MCMC(kernel, num_samples={draws})",
        "warmup": "MCMC(kernel, num_warmup={warmup})",
        "accept": "NUTS(model, target_accept_prob={accept})",
        "depth": "NUTS(model, max_tree_depth={depth})",
        "starts": "init_strategy=",
        "metric": "NUTS(model, dense_mass=True)",
    },
    "cmdstanpy": {
        "chains": "model.sample(chains=4)",
        "draws": "model.sample(iter_sampling={draws})",
        "warmup": "model.sample(iter_warmup={warmup})",
        "accept": "model.sample(adapt_delta={accept})",
        "depth": "model.sample(max_treedepth={depth})",
        "starts": "inits=",
        "metric": 'model.sample(metric="dense_e")',
    },
    "emcee": {
        "chains": "EnsembleSampler(nwalkers=32, ...)",
        "draws": "sampler.run_mcmc(state, {draws})",
        "warmup": "sampler.get_chain(discard={warmup})",
        "accept": "EnsembleSampler(..., moves=emcee.moves.DEMove())",
        "depth": "",
        "starts": "initial_state",
        "metric": "",
    },
}
_WORDS["cmdstan"] = _WORDS["stan"] = _WORDS["cmdstanpy"]


def say(sampler: Sampler, what: str, **values: object) -> str:
    """Name the call that asks for more of something.

    Parameters
    ----------
    sampler
        Who made the run; a library that is not known is answered in samplekit's words.
    what
        "chains", "draws", "warmup", "accept", "depth", "starts" or "metric".
    **values
        The numbers to fill in.
    """
    words = _WORDS.get(sampler.library or "samplekit", _WORDS["samplekit"])
    kernel = sampler.name if sampler.library == "samplekit" and sampler.name else "NUTS"
    return words[what].format(kernel=kernel, **values)
