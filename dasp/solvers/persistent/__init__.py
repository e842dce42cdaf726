"""Conjugate gradients as one launch that stays on the chip."""
