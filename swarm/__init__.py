"""The library of the swarm: decisions (core), learning, sampling, tasks, network ports, simulation.

It imports neither `peers` nor `dashboard`.

Public: these names, and the entry points `swarm.tasks` and `swarm.rewards` by which installed packages bring
tasks and rewards. `examples/` uses them, and CHANGELOG.md says when one of them changes.

    swarm.types               Task, Group, Release, Role, Verdict, PeerId
    swarm.events              Event, Bus
    swarm.journal             Journal, Tail, read_journal, from_line, to_line
    swarm.settings.config              Config, Run, Peer
    swarm.settings.loading      load
    swarm.membership.invite              make, read, Invite, InviteError
    swarm.learn.objectives    Batch, Objective, OBJECTIVES, objective, loss, weights
    swarm.learn.parts         Advantage, Ratio, TrustRegion, Kl
    swarm.learn.trust_region  TRUSTS, TrustRegionInput
    swarm.tasks               source, TaskSource, TaskError, RewardError
    swarm.tasks.base          Exercises, Options, check_options
    swarm.sample.base         Engine, Completions, EngineError
    swarm.net.ports           Ports, Clock, Board, Gossip, Mail, Averager, Work, NetError
    swarm.sim.scenario        Scenario, load
    swarm.sim.world           World, SimPeer, SimulationOutcome
    dashboard.fold.folds      fold
    dashboard.fold.state      SwarmState
    dashboard.diagnosis       diagnose
    dashboard.serve.state_view    view_of, head_of

Everything else may change with any version.
"""

__version__ = "0.1.0"

PROTOCOL = 7
"""Version of everything peers say to each other; peers of different protocols refuse each other at the
invite."""
