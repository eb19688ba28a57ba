"""One trainer for everything that is learned by gradients: machines, energies and scores."""
