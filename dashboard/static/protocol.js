// Made of the tables in swarm/protocol.py by `make docs-protocol`; a test compares the two.

export const Role = {
  LEARNER: "learner",
  SAMPLER: "sampler",
  EVALUATOR: "evaluator",
  AUDITOR: "auditor",
  SEED: "seed",
  OBSERVER: "observer",
};

// In the order in which a swarm is told of.
export const ROLES = Object.values(Role);

export const Phase = {
  UNKNOWN: "",
  STARTING: "starting",
  LEAVING: "leaving",
  SAMPLING: "sampling",
  NO_POLICY: "no policy",
  NO_CREDIT: "no credit",
  NO_TASKS: "no tasks",
  NO_ENGINE: "no engine",
  GATHERING: "gathering",
  LEARNING: "learning",
  MATCHING: "matching",
  STEPPING: "stepping",
  RELEASING: "releasing",
  EARLY: "early",
  CATCHING_UP: "catching up",
  SYNCING: "syncing",
  STOPPED: "stopped",
  EVALUATING: "evaluating",
  AUDITING: "auditing",
  NO_RELEASE: "no release",
  SERVING: "serving",
  WATCHING: "watching",
  PAUSED: "paused",
  LIMITED: "limited",
  COMPLETE: "complete",
};

// Stages that may take long, in the order of a version.
export const STAGES = ["batch", "gradient", "sampling", "evaluation", "release"];
