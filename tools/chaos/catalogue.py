"""All faults, in the order of the table."""

from tools.chaos import engine_faults, faults, feeder_faults

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
        engine_faults.KillEngineLeader,
        engine_faults.FreezeEngineMajority,
        engine_faults.CutSchedulerFromEngine,
        engine_faults.ExpireSession,
        faults.StepClock,
        faults.RollingRestart,
        faults.LoseDatacenter,
        faults.DiskFull,
        feeder_faults.EngineForgets,
        feeder_faults.EngineKilled,
        feeder_faults.EngineAway,
        feeder_faults.EngineFrozen,
        feeder_faults.HintsRepeated,
        feeder_faults.WorkersComeAndGo,
    )
}
