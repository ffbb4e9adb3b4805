"""How environments look: frames of pixels or shapes, by family."""
