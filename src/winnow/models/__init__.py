"""The bundled tiny policy, and how models are loaded."""
