from tests.experiments.pretend import pretend as pretend
