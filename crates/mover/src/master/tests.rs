use super::*;

use std::io::IoSlice;

use crossbeam_channel::bounded;
use haul_meter::Meter;
use haul_model::limits::MESSAGE_BYTES_MAX;
use haul_model::report::FailedPaths;
use haul_model::{BlockId, JobId, SessionId, SlotId};
use haul_protocol::Planted;
use haul_protocol::link::Frame;
use haul_storage::memory_sink::{MemorySink, MemoryTree};
use haul_topology::Placer;
use haul_transport::{Arrivals, Stream, memory};
use haul_wire::{Connect, FRAME_HEADER_BYTES, PayloadHeader, VERSION, VERSION_MIN};

use crate::connection::put_frame;

const OBJECT_BYTES: u32 = 64 << 10;

/// Keeps what it is told of its connection.
#[derive(Default)]
struct Told(Vec<&'static str>);

impl Machine for Told {
    const ROLE: Role = Role::Sink;

    fn on_event(&mut self, event: Event, _now_nanos: u64) {
        match event {
            Event::LinkUp { .. } => self.0.push("up"),
            Event::Payload { .. } => self.0.push("payload"),
            Event::LinkDown => self.0.push("down"),
            Event::Message(_) => self.0.push("message"),
            Event::ScanEnded => self.0.push("scanned"),
            Event::Stop(failure) => self.0.push(failure.code.name()),
            _ => {}
        }
    }

    fn next_action(&mut self) -> Option<Action> {
        None
    }

    fn said(&self) -> Vec<Said> {
        Vec::new()
    }

    fn wants_scan(&self) -> bool {
        true
    }

    fn deadline_nanos(&self) -> Option<u64> {
        None
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn totals_are_final(&self) -> bool {
        false
    }

    fn waiting(&self) -> Option<Waiting> {
        None
    }

    fn awaits_payload(&self) -> bool {
        false
    }

    fn slots_used(&self) -> u32 {
        0
    }
}

fn connect(role: Role) -> Connect {
    Connect {
        version: VERSION,
        version_min: VERSION_MIN,
        role,
        session: SessionId([2; 16]),
        job: JobId([1; 16]),
        object_bytes: OBJECT_BYTES,
        slots: 1,
        features: 0,
    }
}

/// A sink's, which asks for a connection of the other one.
fn master() -> (Running<Told>, Queue<Request>) {
    let (inputs_sender, inputs) = bounded(INPUTS_MAX);
    let (connector, requests) = bounded(1);
    let muster = Muster { meter: Meter::default(), placer: Placer::default() };
    let pool = Pool::new(1, OBJECT_BYTES).unwrap();
    let tree = Arc::new(MemoryTree::default());
    let storage = MemorySink::open(tree, &[], ([1; 6], [2; 4]), OBJECT_BYTES, false).unwrap();
    let running = Running::new(Master {
        machine: Told::default(),
        link: Link::new(Planted::default()),
        introduction: Introduction { connect: connect(Role::Sink), epoch: 0, received: 0 },
        connector,
        workers: Workers::sink(Arc::new(storage), 1, &pool, &inputs_sender, &muster).unwrap(),
        logger: None,
        neighbours: None,
        profiler: Profiler::new(muster.meter.clone(), &pool),
        pool,
        muster,
        scan: never(),
        inputs,
        inputs_sender,
        reports: ReportQueue::start(Box::new(drop)).unwrap().0,
        tuning: Tuning {
            object_bytes: OBJECT_BYTES,
            slots: 1,
            slots_far: 1,
            io_threads: 1,
            hangs_after: None,
            io_threads_max: 1,
            policy: haul_protocol::scheduler::Policy::Lads(Default::default()),
            bundle_bytes_max: 0,
            reconnect: Duration::from_secs(5),
            unattended: false,
            report_done: false,
            bandwidth: None,
        },
    });
    (running, requests)
}

/// Connected with somebody who holds the other ends of these streams.
fn up(running: &mut Running<Told>) -> (Stream, Stream) {
    up_again(running, 1, 0)
}

fn up_again(running: &mut Running<Told>, epoch: u32, peer_received: u64) -> (Stream, Stream) {
    let (control, of_control) = memory::pair(1 << 20);
    let (data, of_data) = memory::pair(1 << 20);
    running.on_connected(Established {
        epoch,
        peer: connect(Role::Source),
        peer_received,
        control,
        data: vec![data],
        shared: false,
    });
    (of_control, of_data)
}

/// Ended well, and the other end does not know yet. The link is the other end's.
fn ended_well(running: &mut Running<Told>) -> Link {
    running.send(&Message::Finished(FailedPaths::default()));
    running.outcome = Some(Outcome { failure: None, stats: Stats::default() });
    let mut link = Link::new(Planted::default());
    link.connected(1, 0).unwrap();
    link
}

/// Takes leave over the connection that stands.
fn farewell(mut running: Running<Told>) -> Ended {
    let refuse = |report| {
        if let Report::Reconnecting { cause } = report {
            panic!("{cause}");
        }
    };
    let (reports, delivery) = ReportQueue::start(Box::new(refuse)).unwrap();
    running.master.reports = reports;
    let ended = running.farewell();
    delivery.join().expect("no other connection is made for it");
    ended
}

fn put(control: &mut dyn haul_transport::Sender, frame: Frame) {
    let mut bytes = Vec::new();
    put_frame(&mut bytes, &frame);
    control.send(&[IoSlice::new(&bytes)]).unwrap();
}

fn wait_for(running: &Running<Told>, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while running.master.inputs.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} came", running.master.inputs.len());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn who_has_ended_well_does_not_wait_for_somebody_who_goes() {
    let (mut running, _requests) = master();
    let (of_control, _of_data) = up(&mut running);
    let mut link = ended_well(&mut running);
    let (mut control, _receiver, _closer) = of_control.split();
    put(&mut *control, link.send(&Message::Error(Code::Interrupted.into())).unwrap());
    let began = Instant::now();
    let ended = farewell(running);
    assert!(ended.error.is_none() && began.elapsed() < FAREWELL_MAX / 4, "{:?}", began.elapsed());
}

#[test]
fn data_streams_may_go_long_before_the_confirmation_comes() {
    let (mut running, _requests) = master();
    let (of_control, of_data) = up(&mut running);
    let mut link = ended_well(&mut running);
    let (mut control, mut receiver, _closer) = of_control.split();
    drop(of_data);
    let late = std::thread::spawn(move || {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        receiver.receive(&mut bytes).unwrap();
        let header = FrameHeader::decode(&bytes).unwrap();
        let mut body = vec![0; header.length as usize];
        receiver.receive(&mut body).unwrap();
        assert_eq!(link.receive(&header, &body), Ok(Some(Message::Finished(FailedPaths::default()))));
        std::thread::sleep(CONFIRMATION_MAX * 3 / 2);
        put(&mut *control, link.confirmation(1).unwrap());
        // Until the other one has closed it.
        while receiver.receive_some(&mut bytes).is_ok_and(|count| count > 0) {}
    });
    let began = Instant::now();
    assert!(farewell(running).error.is_none());
    late.join().unwrap();
    assert!(began.elapsed() >= CONFIRMATION_MAX, "it was waited for");
}

#[test]
fn what_has_arrived_is_told_before_the_loss_of_its_connection() {
    let (mut running, requests) = master();
    assert!(running.master.pool.grant(SlotId(0)));
    let (of_control, of_data) = up(&mut running);
    // Both threads of the control stream find out.
    drop(of_control);
    let ping = running.master.link.unsequenced(1, &Message::Ping);
    let Wire::Up(connection) = &running.wire else { panic!("it stands") };
    connection.frames.send(ping).unwrap();
    wait_for(&running, 2);
    let (mut sender, ..) = of_data.split();
    let header =
        PayloadHeader { epoch: 1, block: BlockId(5), slot: SlotId(0), length: 3, hashes_following: 0 };
    sender.send(&[IoSlice::new(&header.encode()), IoSlice::new(b"abc")]).unwrap();
    drop(sender);
    wait_for(&running, 4);
    // Until the last one has ended.
    std::thread::sleep(Duration::from_millis(50));
    let deadline = Instant::now() + Duration::from_secs(10);
    while running.master.machine.0.last() != Some(&"down") && Instant::now() < deadline {
        running.turn();
    }
    assert_eq!(running.master.machine.0, ["up", "payload", "down"]);
    assert!(requests.try_recv().is_ok() || running.retry_at.is_some(), "another one is asked for");
}

#[test]
fn an_end_that_was_busy_does_not_take_the_other_one_for_silent() {
    let (mut running, _requests) = master();
    let (of_control, _of_data) = up(&mut running);
    let mut link = Link::new(Planted::default());
    link.connected(1, 0).unwrap();
    let (mut control, ..) = of_control.split();
    put(&mut *control, link.unsequenced(1, &Message::Ping));
    wait_for(&running, 1);
    let long_ago = Instant::now().checked_sub(SILENCE_MAX * 2).unwrap();
    running.heard = long_ago;
    running.tick();
    assert!(matches!(running.wire, Wire::Up(_)), "something waits to be heard");
    running.turn();
    assert!(running.heard > long_ago && matches!(running.wire, Wire::Up(_)));
    // Nor does one that was stopped.
    running.heard = long_ago;
    running.stood_still(SILENCE_MAX * 2);
    running.tick();
    assert!(matches!(running.wire, Wire::Up(_)));
    running.heard = long_ago;
    running.tick();
    assert!(!matches!(running.wire, Wire::Up(_)));
}

#[test]
fn time_in_which_an_end_was_stopped_is_none_in_which_it_tried_to_connect() {
    let (mut running, _requests) = master();
    let stopped = running.master.tuning.reconnect * 3;
    let since = Instant::now().checked_sub(stopped).unwrap();
    let unreachable = || Error::new(Code::ConnectionLost, "nobody is there");
    for (stood_still, goes_on) in [(stopped, true), (Duration::ZERO, false)] {
        (running.wire, running.retry_at) = (Wire::Wanted { since, first: false }, None);
        running.stood_still(stood_still);
        running.on_unreachable(unreachable());
        assert_eq!((running.retry_at.is_some(), running.stopped), (goes_on, !goes_on));
    }
}

/// As for a router that starts again just then.
#[test]
fn a_far_sink_that_ends_while_the_path_is_dark_stays_until_it_is_light() {
    for unattended in [true, false] {
        let (mut running, requests) = master();
        running.master.tuning.reconnect = FAREWELL_MAX * 4;
        running.master.tuning.unattended = unattended;
        let (of_control, _of_data) = up(&mut running);
        let mut link = ended_well(&mut running);
        drop(of_control);
        let inputs = running.master.inputs_sender.clone();
        let dark = Instant::now() + FAREWELL_MAX * 3 / 2;
        let peer = std::thread::spawn(move || {
            let mut tries = 0;
            while requests.recv_timeout(FAREWELL_MAX).is_ok() {
                tries += 1;
                if Instant::now() < dark {
                    let error = Error::new(Code::ConnectionLost, "nothing passes");
                    let _ = inputs.send(Input::Connected(Box::new(Err(error))));
                    continue;
                }
                let (control, of_control) = memory::pair(1 << 20);
                let (data, _of_data) = memory::pair(1 << 20);
                link.disconnected();
                link.connected(2, 0).unwrap();
                let (peer, shared) = (connect(Role::Source), false);
                let established =
                    Established { epoch: 2, peer, peer_received: 0, control, data: vec![data], shared };
                let _ = inputs.send(Input::Connected(Box::new(Ok(established))));
                let (mut control, mut receiver, _closer) = of_control.split();
                let mut bytes = [0; FRAME_HEADER_BYTES];
                receiver.receive(&mut bytes).unwrap();
                let header = FrameHeader::decode(&bytes).unwrap();
                let mut body = vec![0; header.length as usize];
                receiver.receive(&mut body).unwrap();
                let told = link.receive(&header, &body);
                put(&mut *control, link.confirmation(1).unwrap());
                while receiver.receive_some(&mut bytes).is_ok_and(|count| count > 0) {}
                return (tries, told);
            }
            (tries, Ok(None))
        });
        let began = Instant::now();
        let ended = running.farewell();
        let took = began.elapsed();
        let (tries, told) = peer.join().unwrap();
        assert!(ended.error.is_none() && tries > 1, "{tries} tries");
        let finished = Ok(Some(Message::Finished(FailedPaths::default())));
        assert_eq!(told == finished, unattended, "{told:?}");
        assert_eq!(took > FAREWELL_MAX * 3 / 2, unattended, "{took:?}");
    }
}

#[test]
fn a_log_that_the_comm_thread_writes_and_that_hangs_is_told_as_such() {
    for is_lost in [false, true] {
        hangs_in_the_log(is_lost);
    }
}

/// Its connection may be lost meanwhile, which that thread is part of.
fn hangs_in_the_log(is_lost: bool) {
    let (mut running, _requests) = master();
    let (told, reports) = crossbeam_channel::unbounded();
    let tell = move |report| match report {
        Report::LogLost { cause } => drop(told.send(cause)),
        Report::Reconnecting { cause } if !is_lost => panic!("{cause}"),
        _ => {}
    };
    let (queue, delivery) = ReportQueue::start(Box::new(tell)).unwrap();
    running.master.reports = queue;
    running.master.tuning.reconnect = Duration::from_secs(1);
    let directory = tempfile::tempdir().unwrap();
    let (logger, comm) = crate::log::tests::written_by_comm(directory.path());
    running.master.logger = Some(logger);
    let (_of_control, _of_data) = up(&mut running);
    let _hangs = comm.held();
    if is_lost {
        running.wire = Wire::Ending { since: Instant::now() };
    }
    let began = Instant::now();
    while !running.stopped && began.elapsed() < SILENCE_MAX {
        running.heard = Instant::now().checked_sub(SILENCE_MAX * 2).unwrap();
        running.tick();
        std::thread::sleep(Duration::from_millis(5));
    }
    let failure = running.last_error.take().map(|error| error.failure.code);
    assert_eq!((running.stopped, failure), (true, Some(Code::LogUnwritable)));
    running.outcome = Some(Outcome { failure: Some(Code::LogUnwritable.into()), stats: Stats::default() });
    let began = Instant::now();
    let ended = running.farewell();
    assert!(ended.hanging > 0 && began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(ended.log.is_some_and(|log| log.lost.is_some()));
    delivery.join().expect("no connection is lost for it");
    assert_eq!(reports.try_iter().count(), 1);
}

#[test]
fn as_long_as_payloads_come_messages_may_be_late() {
    let (mut running, _requests) = master();
    let (control, _of_control) = memory::pair(1 << 20);
    let (data, _of_data) = memory::pair(1 << 20);
    let come = Arc::new(AtomicU64::new(5));
    let count = Arc::clone(&come);
    let data = data.with_arrivals(Arrivals::new(move || Some(count.load(Ordering::Relaxed))));
    let peer = connect(Role::Source);
    let (epoch, peer_received, shared) = (1, 0, false);
    running.on_connected(Established { epoch, peer, peer_received, control, data: vec![data], shared });
    let long_ago = Instant::now().checked_sub(SILENCE_MAX * 2).unwrap();
    let mut stands_when_come = |bytes| {
        running.missing.look(false, Some(5), long_ago);
        running.heard = long_ago;
        come.store(bytes, Ordering::Relaxed);
        running.tick();
        matches!(running.wire, Wire::Up(_))
    };
    assert!(stands_when_come(6) && !stands_when_come(5));
}

#[test]
fn a_log_that_is_lost_is_told_once_whatever_is_said_of_it() {
    let (mut running, _requests) = master();
    let (told, losses) = crossbeam_channel::unbounded();
    let tell = move |report| {
        if let Report::LogLost { cause } = report {
            told.send(cause).unwrap();
        }
    };
    let (reports, delivery) = ReportQueue::start(Box::new(tell)).unwrap();
    running.master.reports = reports;
    for lost in ["", "full", "", "full", "gone"] {
        let lost = lost.as_bytes().into();
        let none = Box::default;
        let (mechanism, method, writer, location) = (none(), none(), none(), none());
        let (bytes_peak, files_peak) = (0, 0);
        running.on_peer_log(LogStatus { mechanism, method, writer, bytes_peak, files_peak, location, lost });
    }
    assert_eq!(running.peer_log.take().and_then(|log| log.lost).as_deref(), Some("full"));
    drop(running);
    delivery.join().unwrap();
    assert!(losses.into_iter().eq(["full"]));
}

#[test]
fn what_no_frame_begins_with_ends_the_session() {
    let (mut running, _requests) = master();
    let (of_control, _of_data) = up(&mut running);
    let (mut control, ..) = of_control.split();
    let begins =
        FrameHeader { length: (MESSAGE_BYTES_MAX + 1) as u32, epoch: 1, sequence: 1, received: 0, kind: 12 };
    control.send(&[IoSlice::new(&begins.encode())]).unwrap();
    wait_for(&running, 1);
    running.turn();
    assert_eq!(running.master.machine.0, ["up", "protocol-violation"]);
    assert!(running.last_error.as_ref().is_some_and(|error| error.to_string().contains("over its limit")));
}

#[test]
fn who_has_ended_well_does_not_wait_for_somebody_who_breaks_the_protocol() {
    let (mut running, _requests) = master();
    let (of_control, _of_data) = up(&mut running);
    ended_well(&mut running);
    let (mut control, ..) = of_control.split();
    control.send(&[IoSlice::new(&[0xff; FRAME_HEADER_BYTES])]).unwrap();
    let began = Instant::now();
    farewell(running);
    assert!(began.elapsed() < FAREWELL_MAX / 4, "{:?}", began.elapsed());
}

/// Reports that nobody takes until the other half is dropped.
fn paused() -> (ReportQueue, crossbeam_channel::Sender<()>) {
    let (gate, opened) = bounded::<()>(0);
    let wait = move |_| {
        let _ = opened.recv();
    };
    (ReportQueue::start(Box::new(wait)).unwrap().0, gate)
}

#[test]
fn a_master_whose_reports_wait_goes_on_and_takes_on_nothing_new() {
    let (mut running, _requests) = master();
    let (reports, gate) = paused();
    running.master.reports = reports;
    let (scanned, scan) = bounded(1);
    running.master.scan = scan;
    let (of_control, _of_data) = up(&mut running);
    for _ in 0..=crate::report_queue::BEHIND {
        running.carry_out(Action::Fact(haul_model::report::Fact::FailedToo { count: 1 }));
    }
    scanned.send(vec![Event::ScanEnded]).unwrap();
    let mut link = Link::new(Planted::default());
    link.connected(1, 0).unwrap();
    let (mut control, mut receiver, _closer) = of_control.split();
    let done = Message::BlockDone { slots: vec![], allowances: vec![] };
    put(&mut *control, link.send(&done).unwrap());
    wait_for(&running, 1);
    running.turn();
    running.tick();
    // It was received and confirmed, and the machine has not heard of it.
    let mut bytes = [0; FRAME_HEADER_BYTES];
    receiver.receive(&mut bytes).unwrap();
    assert_eq!(FrameHeader::decode(&bytes).unwrap().received, 1);
    assert_eq!(running.master.machine.0, ["up"]);
    drop(gate);
    let deadline = Instant::now() + Duration::from_secs(10);
    while running.master.machine.0.len() < 3 && Instant::now() < deadline {
        running.turn();
    }
    running.master.machine.0.sort();
    assert_eq!(running.master.machine.0, ["message", "scanned", "up"]);
}

#[test]
fn what_was_put_aside_is_told_before_the_loss_of_its_connection() {
    let (mut running, _requests) = master();
    let (reports, _gate) = paused();
    running.master.reports = reports;
    let (of_control, _of_data) = up(&mut running);
    for _ in 0..=crate::report_queue::BEHIND {
        running.carry_out(Action::Fact(haul_model::report::Fact::FailedToo { count: 1 }));
    }
    let mut link = Link::new(Planted::default());
    link.connected(1, 0).unwrap();
    let (mut control, ..) = of_control.split();
    let done = Message::BlockDone { slots: vec![], allowances: vec![] };
    put(&mut *control, link.send(&done).unwrap());
    wait_for(&running, 1);
    running.turn();
    running.on_lost(1, "cut".into());
    let deadline = Instant::now() + Duration::from_secs(10);
    while running.master.machine.0.last() != Some(&"down") && Instant::now() < deadline {
        running.turn();
    }
    assert_eq!(running.master.machine.0, ["up", "message", "down"]);
}

/// A sink whose reports wait, and the one that goes on speaking with it.
fn behind() -> (Running<Told>, crossbeam_channel::Sender<()>, Stream, Stream) {
    let (mut running, _requests) = master();
    let (reports, gate) = paused();
    running.master.reports = reports;
    let (of_control, of_data) = up(&mut running);
    for _ in 0..=crate::report_queue::BEHIND {
        running.carry_out(Action::Fact(haul_model::report::Fact::FailedToo { count: 1 }));
    }
    (running, gate, of_control, of_data)
}

/// The same where so much waits that nothing more is received.
fn far_behind() -> (Running<Told>, crossbeam_channel::Sender<()>, Stream) {
    let (mut running, gate, of_control, of_data) = behind();
    std::thread::spawn(move || {
        let mut link = Link::new(Planted::default());
        link.connected(1, 0).unwrap();
        let (mut control, _receiver, _closer) = of_control.split();
        let much = Message::BlockDone { slots: vec![SlotId(4095); 4096], allowances: vec![] };
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            put_frame(&mut bytes, &link.send(&much).unwrap());
            if control.send(&[IoSlice::new(&bytes)]).is_err() {
                return;
            }
        }
    });
    let full = |running: &Running<Told>| {
        running.put_aside.back().is_some_and(|last| last.weight.as_ref().is_some_and(Weight::is_too_much))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !full(&running) || !running.master.inputs.is_empty() {
        assert!(Instant::now() < deadline);
        running.turn();
    }
    (running, gate, of_data)
}

#[test]
fn a_connection_over_which_too_much_has_come_can_be_lost_and_ended() {
    let (mut running, _gate, _of_data) = far_behind();
    running.on_lost(1, "cut".into());
    let deadline = Instant::now() + Duration::from_secs(10);
    while running.master.machine.0.last() != Some(&"down") {
        assert!(Instant::now() < deadline, "its threads have not ended");
        running.turn();
    }
    let (mut running, _gate, _of_data) = far_behind();
    running.outcome = Some(Outcome { failure: Some(Code::Interrupted.into()), stats: Stats::default() });
    assert_eq!(running.farewell().hanging, 0);
}

/// Or each would bring as much as is held up of one.
#[test]
fn no_next_connection_is_asked_for_while_far_too_much_is_to_be_told() {
    let (mut running, requests) = master();
    let (reports, gate) = paused();
    running.master.reports = reports;
    let (_of_control, _of_data) = up(&mut running);
    while requests.try_recv().is_ok() {}
    for _ in 0..=crate::report_queue::FAR_BEHIND {
        running.carry_out(Action::Fact(haul_model::report::Fact::FailedToo { count: 1 }));
    }
    running.on_lost(1, "cut".into());
    let mut turn_for = |time| {
        let until = Instant::now() + time;
        while requests.is_empty() && Instant::now() < until {
            running.turn();
        }
        requests.len()
    };
    assert_eq!(turn_for(Duration::from_secs(2)), 0);
    drop(gate);
    assert_eq!(turn_for(Duration::from_secs(30)), 1);
}

#[test]
fn who_only_says_that_it_is_there_is_not_waited_for_with_what_it_says() {
    let (mut running, _gate, of_control, _of_data) = behind();
    let mut link = Link::new(Planted::default());
    link.connected(1, 0).unwrap();
    let (mut control, ..) = of_control.split();
    put(&mut *control, link.confirmation(0).unwrap());
    wait_for(&running, 1);
    running.turn();
    assert!(running.put_aside.is_empty());
}

/// Many messages more than a stream takes that nobody reads. The number of the last one.
fn say_much(running: &mut Running<Told>) -> u64 {
    let much = Message::BlockDone { slots: vec![SlotId(u32::MAX); 4096], allowances: vec![] };
    (0..200).for_each(|_| running.send(&much));
    let deadline = Instant::now() + Duration::from_secs(10);
    while running.written.load(Ordering::Acquire) == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    200
}

#[test]
fn what_was_never_written_cannot_be_confirmed() {
    let (mut running, _requests) = master();
    let (of_control, _of_data) = up(&mut running);
    let last = say_much(&mut running);
    let (mut control, _unread, _closer) = of_control.split();
    let mut link = Link::new(Planted::default());
    let mut confirm = |running: &mut Running<Told>, received| {
        let mut ping = link.unsequenced(1, &Message::Ping);
        ping.header.received = received;
        put(&mut *control, ping);
        wait_for(running, 1);
        running.turn();
    };
    confirm(&mut running, 1);
    assert_eq!(running.master.machine.0, ["up", "message"]);
    confirm(&mut running, last);
    assert_eq!(running.master.machine.0, ["up", "message", "protocol-violation"]);
}

#[test]
fn nor_with_the_next_connection() {
    for (received, expected) in [(1, "up"), (200, "protocol-violation")] {
        let (mut running, _requests) = master();
        let (of_control, _of_data) = up(&mut running);
        assert!(say_much(&mut running) == 200);
        drop(of_control);
        let deadline = Instant::now() + Duration::from_secs(10);
        while running.master.machine.0.last() != Some(&"down") && Instant::now() < deadline {
            running.turn();
        }
        let (of_control, _of_data) = up_again(&mut running, 2, received);
        assert_eq!(running.master.machine.0, ["up", "down", expected]);
        if expected != "up" {
            continue;
        }
        // What was lost is written again, and counts as written from then on.
        let (_sender, mut receiver, _closer) = of_control.split();
        let mut bytes = [0; FRAME_HEADER_BYTES];
        receiver.receive(&mut bytes).unwrap();
        assert_eq!(FrameHeader::decode(&bytes).unwrap().sequence, 2);
        assert!(running.written.load(Ordering::Acquire) > 1);
    }
}

/// It has the same patience, and may have begun to wait earlier.
#[test]
fn an_end_that_was_waited_for_in_vain_is_not_said_to_have_ended() {
    for (waited_seconds, told) in [(1, Code::PeerEnded), (9, Code::ConnectionLost)] {
        let (mut running, _requests) = master();
        running.master.tuning.reconnect = Duration::from_secs(10);
        let since = Instant::now().checked_sub(Duration::from_secs(waited_seconds)).unwrap();
        running.wire = Wire::Wanted { since, first: false };
        running.last_error = Some(Error::new(Code::ConnectionLost, "refused"));
        running.on_unreachable(Error::new(Code::PeerEnded, "host"));
        let failure = running.last_error.take().map(|error| error.failure.code);
        assert_eq!((running.stopped, failure), (true, Some(told)), "{waited_seconds} s");
    }
}
