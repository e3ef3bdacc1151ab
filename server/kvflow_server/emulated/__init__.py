"""An accelerator for machines that have none."""
