"""The paper's evaluation on real servers: `kvflow bench paper`."""
