"""Learning at one site and the outer step: tasks, partitions, local training, evaluation."""
