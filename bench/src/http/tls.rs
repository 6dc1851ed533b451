//! TLS for the load: a certificate made for the run, and clients that trust it and nothing else.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::{ClientConfig, RootCertStore};

/// The one suite that is offered, so that every engine encrypts with the same cipher.
pub const SUITE: &str = "TLS_AES_128_GCM_SHA256";

/// A certificate for `localhost` with its key, in a folder.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// PEM.
    pub certificate: PathBuf,
    /// PEM.
    pub key: PathBuf,
    /// What a client needs to connect.
    pub client: Arc<ClientConfig>,
}

impl Certificate {
    /// Makes one below `dir`.
    pub fn make(dir: &Path) -> Result<Certificate> {
        let made =
            rcgen::generate_simple_self_signed(vec!["localhost".into()]).context("making a certificate")?;
        let (certificate, key) = (dir.join("cert.pem"), dir.join("key.pem"));
        std::fs::write(&certificate, made.cert.pem())?;
        std::fs::write(&key, made.signing_key.serialize_pem())?;
        std::fs::set_permissions(&key, Permissions::from_mode(0o600))?;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone())?;
        let mut provider = default_provider();
        provider.cipher_suites = vec![cipher_suite::TLS13_AES_128_GCM_SHA256];
        let client = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Certificate { certificate, key, client: Arc::new(client) })
    }
}
