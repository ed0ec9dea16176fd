//! Ways to a server, and what the types promise to programs.

use leasehold::{
    Builder, Error, Lease, LockGuard, LockManager, Lost, MultiGuard, MultiLock, Mutex, Permit,
    RateLimiter, ReadGuard, ReentrantGuard, ReentrantMutex, RwLock, Semaphore, WriteGuard,
};

use crate::support::{Server, build, lost, manager, name, secs, shared};

#[test]
fn everything_goes_between_threads() {
    fn both<T: Send + Sync + 'static>() {}
    fn shared<T: Sync + 'static>() {}
    both::<LockManager>();
    both::<Builder>();
    both::<Mutex>();
    both::<ReentrantMutex>();
    both::<RwLock>();
    both::<Semaphore>();
    both::<MultiLock>();
    both::<RateLimiter>();
    both::<LockGuard>();
    both::<ReadGuard>();
    both::<WriteGuard>();
    both::<Permit>();
    both::<MultiGuard>();
    both::<Lease>();
    both::<Lost>();
    both::<Error>();
    // It stays on its thread, but may be looked at from others.
    shared::<ReentrantGuard>();
}

#[test]
fn a_unix_socket_is_an_address() {
    let dir = std::env::temp_dir().join(name("socket").replace(':', "-"));
    let socket = dir.to_str().expect("a plain path").to_owned();
    let server = Server::with(&["--unixsocket", &socket, "--requirepass", "pass word"]);
    let locks = manager(&format!("unix://{socket}?pass=pass%20word&db=3"));
    let guard = locks.lock("n").expect("free");
    let elsewhere = server.url().replace("redis://", "redis://:pass%20word@");
    assert!(
        manager(&format!("{elsewhere}3"))
            .try_lock("n")
            .expect("asked")
            .is_none()
    );
    assert!(manager(&elsewhere).try_lock("n").expect("asked").is_some());
    // The builder's database comes before the URL's.
    let third = build(LockManager::single(&elsewhere).database(3));
    assert!(third.try_lock("n").expect("asked").is_none());
    guard.release().expect("held");
    drop(server);
    std::fs::remove_file(socket).ok();
}

#[test]
fn a_handles_own_settings_come_before_the_managers() {
    let raw = shared();
    let name = name("settings");
    let locks = build(LockManager::single(raw.url()).lease(secs(5)).renew(true));
    let handle = locks.mutex(&name).lease(secs(100)).renew(false);
    let guard = handle.lock().expect("free");
    assert!(raw.ttl(&name).expect("it expires") > secs(50));
    assert!(guard.remaining() > secs(50));
    drop(guard);
    let guard = locks.lock(&name).expect("free");
    assert!(raw.ttl(&name).expect("it expires") <= secs(5));
    let () = raw.ask(&["SET", &name, "other"]);
    assert_eq!(lost(guard.release()).name.as_ref(), name);
}
