"""From groups to steps: batches, gradients in pieces, optimizers, and the learner of a round or of a site."""
