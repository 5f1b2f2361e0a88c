from tests.jobs import jobs as jobs
from tests.simulation.virtual import regions as regions
from tests.three_sites import three_sites as three_sites
