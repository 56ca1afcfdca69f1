"""KaHyPar's settings: it has no defaults and its package ships no configuration.

The connectivity metric, direct k-way with k-way FM and flow refinement. The hypergraphs are
small (10^2 to 10^4 vertices) and so are k and the time, so coarsening goes on for long (c-t)
before initial partitioning. Names are those of KaHyPar 1.3; it exits where one is missing.
"""

CONFIG = """
mode=direct
objective=km1
seed=0
cmaxnet=-1
vcycles=0

p-use-sparsifier=false
p-detect-communities=true
p-detect-communities-in-ip=false
p-max-louvain-pass-iterations=50
p-min-eps-improvement=0.001
p-louvain-edge-weight=hybrid

c-type=ml_style
c-s=1
c-t=20
c-rating-score=heavy_edge
c-rating-use-communities=true
c-rating-heavy_node_penalty=no_penalty
c-rating-acceptance-criterion=best_prefer_unmatched
c-fixed-vertex-acceptance-criterion=fixed_vertex_allowed

i-mode=recursive
i-technique=multi
i-algo=pool
i-runs=10
i-bp-algorithm=worst_fit
i-bp-heuristic-prepacking=false
i-bp-early-restart=true
i-bp-late-restart=true
i-c-type=ml_style
i-c-s=1
i-c-t=20
i-c-rating-score=heavy_edge
i-c-rating-use-communities=true
i-c-rating-heavy_node_penalty=no_penalty
i-c-rating-acceptance-criterion=best_prefer_unmatched
i-c-fixed-vertex-acceptance-criterion=fixed_vertex_allowed
i-r-type=twoway_fm
i-r-runs=-1
i-r-fm-stop=simple
i-r-fm-stop-i=50

r-type=kway_fm_hyperflow_cutter_km1
r-runs=-1
r-fm-stop=adaptive_opt
r-fm-stop-alpha=1
r-flow-execution-policy=exponential
r-hfc-size-constraint=mf-style
r-hfc-scaling=16
r-hfc-distance-based-piercing=true
r-hfc-mbc=true
"""
