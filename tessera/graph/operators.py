"""The five operators of training. Every distribution policy is a colouring of these."""

OPERATORS: dict[str, str] = {
    "env": "steps environments",
    "act": "chooses actions and records experience",
    "store": "keeps experience and draws samples from it",
    "grad": "computes gradients",
    "apply": "applies gradients and publishes params",
}
