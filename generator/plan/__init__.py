"""Plans of a region: which template with which parameters, ranked by a cost model, diverse and few."""

from generator.plan.cost import Cost, cost_of
from generator.plan.hardware import Hardware, hardware_of
from generator.plan.planner import Plan, PlanSet, Removed, plan_key, plans_for

__all__ = ["Cost", "Hardware", "Plan", "PlanSet", "Removed", "cost_of", "hardware_of", "plan_key", "plans_for"]
