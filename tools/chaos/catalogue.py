"""All faults, in the order of the table."""

from tools.chaos import broker_faults, coordinator_faults, faults

FAULTS: dict[str, type[faults.Fault]] = {
    fault.name: fault
    for fault in (
        faults.KillScheduler,
        faults.KillWorker,
        faults.KillApi,
        faults.FreezeScheduler,
        faults.FreezeWorker,
        faults.FreezeApi,
        faults.RestartPostgres,
        faults.PromoteStandby,
        faults.MoveAddress,
        faults.CutScheduler,
        faults.CutSchedulerOneWay,
        faults.CutWorker,
        faults.CutWorkerOneWay,
        coordinator_faults.KillCoordinatorLeader,
        coordinator_faults.FreezeCoordinatorMajority,
        coordinator_faults.CutSchedulerFromCoordinator,
        coordinator_faults.ExpireSession,
        faults.StepClock,
        faults.RollingRestart,
        faults.LoseDatacenter,
        faults.DiskFull,
        broker_faults.BrokerForgets,
        broker_faults.BrokerKilled,
        broker_faults.BrokerAway,
        broker_faults.BrokerFrozen,
        broker_faults.HintsRepeated,
        broker_faults.WorkersComeAndGo,
    )
}
