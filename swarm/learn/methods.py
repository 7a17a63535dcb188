"""The table of methods: each row is an Objective, with its paper and its authors' published defaults.

Where a paper knows no stale sampler (RLOO, OPO, GPG), its weight is 1; where it has an old policy between
sampler and learner, a batch is used for one step and the old policy is the sampler. Numbers are the authors'
unless the line above a method names another source.
"""

from __future__ import annotations

from swarm.learn.parts import Advantage, Kl, Objective, Ratio, TrustRegion

_GRPO = Advantage("group-mean", "group-std")
_CENTRED = Advantage("group-mean")
_LEAVE_ONE_OUT = Advantage("leave-one-out")
_SUM = "sequence-sum"
_MEAN = "sequence-mean"
_TRAJECTORY = Ratio("sequence", "full")
_EXPECTATION = Ratio("group-expectation")
_NO_KL = Kl()


def _of(
    name: str,
    about: str,
    source: str,
    advantage: Advantage,
    ratio: Ratio,
    trust: TrustRegion,
    reduce: str,
    kl: Kl = _NO_KL,
) -> Objective:
    return Objective(name, advantage, ratio, trust, reduce, kl, about, source)


# fmt: off
# A row is a method: name, description, source; advantage, ratio, trust region, reduction, KL.
METHODS: tuple[Objective, ...] = (
    # --- no correction for staleness ------------------------------------------------------------------------
    _of("reinforce", "reward times grad log p: no baseline, no correction", "Williams 1992",
        Advantage("none"), Ratio("unit"), TrustRegion("free"), _SUM),
    _of("rloo", "the others' mean as baseline, no correction", "arXiv 2402.14740 sec. 2.2",
        _LEAVE_ONE_OUT, Ratio("unit"), TrustRegion("free"), _SUM),
    _of("opo", "length-weighted mean as baseline, the optimal one where variance grows with length",
        "arXiv 2505.23585",
        Advantage("length-weighted"), Ratio("unit"), TrustRegion("free"), _SUM),
    _of("gpg", "plain policy gradient, rescaled by the share of groups that teach", "arXiv 2504.02546",
        Advantage("group-mean", "live"), Ratio("unit"), TrustRegion("free"), "token-mean"),
    # Score log p, temperature 10, KL budget 1e-4, penalty 1e3.
    _of("disco", "raise right scores, push down wrong ones by their softmax, KL within a budget",
        "arXiv 2505.12366",
        Advantage("discriminative"), Ratio("unit"), TrustRegion("free"), _MEAN, Kl("hinge", 1e3)),
    # --- token ratios ---------------------------------------------------------------------------------------
    # Whitened over the batch, as PPO's implementations do; there is no critic.
    _of("ppo_clip", "token ratio, clip of 0.2, advantages whitened over the batch", "arXiv 1707.06347 eq. 7",
        Advantage("group-mean", "batch-std"), Ratio("token"), TrustRegion("clip"), "token-mean"),
    _of("grpo", "token ratio, PPO clip, std-normalised advantage, mean over each sequence",
        "arXiv 2402.03300 eq. 3",
        _GRPO, Ratio("token"), TrustRegion("clip"), _MEAN),
    _of("dr_grpo", "GRPO without the std and without each sequence's length", "arXiv 2503.20783",
        _CENTRED, Ratio("token"), TrustRegion("clip"), "constant"),
    # TRL's loss of that name.
    _of("bnpo", "GRPO with one mean over all tokens", "TRL, loss_type bnpo",
        _GRPO, Ratio("token"), TrustRegion("clip"), "token-mean"),
    _of("bnpo_beta", "advantage over a Beta density fitted to the batch's pass rates", "arXiv 2506.02864",
        Advantage("group-mean", "beta"), Ratio("token"), TrustRegion("clip", 0.2, 0.28, dual=10.0), _SUM),
    _of("dapo", "clip higher up, token mean over the groups that teach", "arXiv 2503.14476 eq. 8",
        _GRPO, Ratio("token"), TrustRegion("clip", 0.2, 0.28), "live-token-mean"),
    _of("delta_l", "weights 1/length normalised over the batch: unbiased, least variance",
        "arXiv 2509.07558",
        _GRPO, Ratio("token"), TrustRegion("clip", 0.2, 0.3), "inverse-power"),
    _of("sapo", "a sigmoid instead of a clip, a little steeper for negative advantages",
        "arXiv 2511.20347 eq. 5-6",
        _GRPO, Ratio("token"), TrustRegion("soft", constants=(1.0, 1.05)), _MEAN),
    # MiniMax did not publish the cap; 5 is ScaleRL's (arXiv 2510.13786).
    _of("cispo", "token weight capped at 5, no token dropped", "arXiv 2506.13585 eq. 4-5",
        _GRPO, Ratio("token"), TrustRegion("floor-cap", lo=1.0, hi=4.0), "token-mean"),
    # The cap is that of verl and slime.
    _of("tis", "token weight capped at 2", "Yao et al. 2025, Your efficient RL framework ...",
        _GRPO, Ratio("token"), TrustRegion("cap", hi=1.0), "token-mean"),
    # LlamaRL recommends 2 to 10.
    _of("aipo", "token weight capped at 4, centred advantage", "arXiv 2505.24034",
        _CENTRED, Ratio("token"), TrustRegion("cap", hi=3.0), "token-mean"),
    # TRL's bound.
    _of("mis", "token weight, dropped above 3", "Liu, Li et al. 2025, When speed kills stability",
        _GRPO, Ratio("token"), TrustRegion("band", lo=1.0, hi=2.0), "token-mean"),
    _of("icepop", "token weight, dropped outside 0.5 to 5", "arXiv 2510.18855",
        _GRPO, Ratio("token"), TrustRegion("band", lo=0.5, hi=4.0), "token-mean"),
    # Without a proximal policy in the batch it is the learner's own: a token weight, dropped above 5.
    _of("decoupled", "PPO clip around a proximal policy, times its weight against the sampler",
        "arXiv 2505.24298",
        _GRPO, Ratio("token"), TrustRegion("decoupled", against="prox", dual=5.0), "token-mean"),
    _of("a3po", "decoupled PPO, the proximal policy interpolated by the lag", "arXiv 2512.06547",
        _GRPO, Ratio("token"), TrustRegion("decoupled", against="blend", dual=5.0), "token-mean"),
    _of("m2po", "clip where the harmful tokens' second moment of log r exceeds 0.04", "arXiv 2510.01161",
        _GRPO, Ratio("token"), TrustRegion("second-moment", constants=(0.04, 0.3, 0.5)), "token-mean"),
    _of("dppo", "drop tokens whose probability moved by more than 0.15 with the advantage",
        "arXiv 2602.04879 eq. 12-13",
        _CENTRED, Ratio("token"), TrustRegion("tv", 0.15, 0.15), "constant"),
    # INTELLECT Policy Optimization, the default since September 2026.
    _of("prime_rl", "token weight, dropped where the probability moved by more than 0.3", "prime-rl, IPO",
        _CENTRED, Ratio("token"), TrustRegion("tv-band", 0.3, 0.3), "live-token-mean"),
    # delta is not published; 0.5 is TRL's.
    _of("deepseek_v3", "GRPO's clip; drops bad sequences that drifted by 0.5 nats a token",
        "arXiv 2512.02556 eq. 9",
        _CENTRED, Ratio("token"), TrustRegion("clip", veto="drift", edge=0.5), _MEAN,
        Kl("k3-weighted", against="ref")),
    _of("mhpo", "tanh-bounded log ratio, damped by a hazard on either side", "arXiv 2603.16929",
        _GRPO, Ratio("token"), TrustRegion("hazard", constants=(1.5, 1.5, 1.0, 2.0, 0.8)), _MEAN),
    # --- prefix and suffix ratios ---------------------------------------------------------------------------
    _of("ctpo", "ratio of the prefix, with a log clip that widens as the root of its length",
        "arXiv 2605.07331 sec. 3.3",
        _GRPO, Ratio("prefix"), TrustRegion("widening", 0.025, 0.05, dual=0.05), _MEAN),
    # lambda, rho-bar and c-bar 1; one reward at the end, the group's mean as value.
    _of("vtrace", "product of the ratios from here on, each at most 1", "arXiv 1802.01561 eq. 1",
        _CENTRED, Ratio("trace"), TrustRegion("free"), "constant"),
    # --- whole sequences, geometric -------------------------------------------------------------------------
    _of("gspo", "length-normalised sequence ratio, clipped at 3e-4 and 4e-4", "arXiv 2507.18071 eq. 5-7",
        _GRPO, Ratio("sequence"), TrustRegion("clip", 3e-4, 4e-4), _MEAN),
    # With one advantage for a completion, which is all that groups carry, its gradient is GSPO's.
    _of("gspo_token", "GSPO with the gradient through each token's own ratio", "arXiv 2507.18071 eq. 13-14",
        _GRPO, Ratio("sequence"), TrustRegion("clip", 3e-4, 4e-4), _MEAN),
    _of("luspo", "GSPO, each sequence counted by its length", "arXiv 2602.05261",
        _GRPO, Ratio("sequence"), TrustRegion("clip", 2e-3, 2.5e-3), _SUM),
    _of("gmpo", "geometric mean of token ratios clipped at 0.4 nats", "arXiv 2507.20673 eq. 4",
        _GRPO, Ratio("token"), TrustRegion("geometric-clip", 0.4, 0.4), _MEAN),
    # --- whole sequences, exact -----------------------------------------------------------------------------
    _of("seq_is", "exact weight of the trajectory: unbiased, variance exponential in the length", "textbook",
        _LEAVE_ONE_OUT, _TRAJECTORY, TrustRegion("free"), _SUM),
    _of("seq_tis", "trajectory's weight, capped at 2", "Liu, Li et al. 2025, When speed kills stability",
        _CENTRED, _TRAJECTORY, TrustRegion("cap", hi=1.0), _SUM),
    _of("seq_mis", "trajectory's weight, dropped outside 0.5 to 2", "verl, rollout correction",
        _CENTRED, _TRAJECTORY, TrustRegion("band", lo=0.5, hi=1.0), _SUM),
    _of("snis", "trajectory's weights divided by their mean in the group", "textbook",
        Advantage("weight-weighted"), Ratio("self-normalised", "full"), TrustRegion("free"), _SUM),
    # The paper has rewards of +-1, a baseline to tune and the log-probability of the whole completion: here
    # the group's mean, and the mean of a completion's tokens; reduce=sequence-sum is the paper's.
    _of("topr", "good completions as they are, bad ones by their trajectory's weight up to 1; mean over each",
        "arXiv 2503.14286 eq. 8, there a sum over each",
        _CENTRED, _TRAJECTORY, TrustRegion("taper"), _MEAN),
    _of("vespo", "gamma-shaped kernel of the trajectory's weight, by the advantage's sign",
        "arXiv 2602.10693 sec. 3.4",
        _GRPO, _TRAJECTORY, TrustRegion("gamma", constants=(2.0, 3.0, 3.0, 2.0)), "token-mean"),
    # --- the group's expectation ----------------------------------------------------------------------------
    # The gate is ours: see `trust_region._gate`.
    _of("gepo", "weight over the group's expected probability, gated where the sequence has moved",
        "arXiv 2508.17850 eq. 2-5",
        _CENTRED, _EXPECTATION, TrustRegion("gate"), _MEAN),
    _of("gepo_noclip", "GEPO's weight without a trust region", "arXiv 2508.17850 eq. 2-3",
        _CENTRED, _EXPECTATION, TrustRegion("free"), _MEAN),
    _of("gepo_paper", "as its authors run it: PPO's clip of 0.2 around 1", "arXiv 2508.17850 eq. 5",
        _CENTRED, _EXPECTATION, TrustRegion("clip"), _MEAN),
    _of("gepo_full", "GEPO of whole sequences' probabilities", "arXiv 2508.17850 eq. 2",
        _CENTRED, Ratio("group-expectation", "full"), TrustRegion("gate"), _SUM),
    # The authors name the defence and no number.
    _of("gepo_mix", "GEPO, half of the expectation the completion's own probability",
        "arXiv 2508.17850, defensive sampling",
        _CENTRED, Ratio("group-expectation", mix=0.5), TrustRegion("gate"), _MEAN),
    _of("gepo_mean", "GEPO over the plain mean of the group's probabilities",
        "arXiv 2508.17850 sec. 3.1, rejected there",
        _CENTRED, Ratio("group-expectation", over="mean"), TrustRegion("gate"), _MEAN),
    # The authors' code differentiates the denominator; here it is constant.
    _of("gepo_eqp", "GEPO over the group's expectation of the learner's probability",
        "GEPO authors' code, EqP",
        _CENTRED, Ratio("group-expectation", over="p"), TrustRegion("gate"), _MEAN),
    # --- ours -----------------------------------------------------------------------------------------------
    _of("seq_tis_wb", "seq_tis with the weight-weighted mean reward as baseline", "docs/objectives.md",
        Advantage("weight-weighted"), _TRAJECTORY, TrustRegion("cap", hi=1.0), _SUM),
    _of("gepo_defensive", "GEPO of whole sequences, nine tenths of the expectation the completion's own",
        "docs/objectives.md",
        _CENTRED, Ratio("group-expectation", "full", mix=0.9), TrustRegion("free"), _SUM),
    _of("tempered", "between token and trajectory weights, as far as half of the group stays effective",
        "docs/objectives.md",
        _CENTRED, Ratio("tempered", ess=0.5), TrustRegion("cap", hi=1.0), _SUM),
)
# fmt: on
