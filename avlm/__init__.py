"""AVLM Recipes: fine-tune audio-visual language models from one recipe file."""

__version__ = "0.1.0"
