//! What the proxy shows to its TLS clients: a certificate and its key, from files, read again at SIGHUP.
//!
//! rustls speaks the protocol, over aws-lc-rs: on a CPU with VAES it encrypts up to twice as fast as over ring, and
//! both need nothing but a C compiler to build.

use anyhow::{Context, bail};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys, ServerConfig};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A certificate chain and its key, and where they came from.
#[derive(Debug)]
pub struct Identity {
    certificates: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    current: Mutex<Arc<ServerConfig>>,
}

impl Identity {
    /// Reads both files (PEM), and checks that they belong together.
    pub fn open(certificates: &Path, key: &Path) -> anyhow::Result<Arc<Identity>> {
        let provider = Arc::new(default_provider());
        let current = Mutex::new(settings(read(certificates, key, &provider)?, &provider)?);
        let (certificates, key) = (certificates.to_owned(), key.to_owned());
        Ok(Arc::new(Identity { certificates, key, provider, current }))
    }

    /// Reads the files again, for the clients to come: none of them takes up a session that began under what was there before.
    /// After an error that stays in use.
    pub fn reload(&self) -> anyhow::Result<()> {
        let fresh = settings(read(&self.certificates, &self.key, &self.provider)?, &self.provider)?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The settings of a connection that begins now.
    pub fn settings(&self) -> Arc<ServerConfig> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// TLS 1.2 and 1.3, HTTP/1.1. The sessions that can be taken up again are kept here, so they go with the certificate.
fn settings(pair: CertifiedKey, provider: &Arc<CryptoProvider>) -> anyhow::Result<Arc<ServerConfig>> {
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn read(certificates: &Path, key: &Path, provider: &CryptoProvider) -> anyhow::Result<CertifiedKey> {
    let (cert_flag, key_flag) =
        (format!("--tls-cert {}", certificates.display()), format!("--tls-key {}", key.display()));
    let bytes = std::fs::read(certificates).with_context(|| cert_flag.clone())?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, pem::Error>>()
        .map_err(|error| anyhow::anyhow!("{cert_flag} is damaged: {error}"))?;
    if chain.is_empty() {
        bail!("{cert_flag} has no certificate in it: a PEM file with \"BEGIN CERTIFICATE\" is needed");
    }
    let bytes = std::fs::read(key).with_context(|| key_flag.clone())?;
    let secret = match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(secret) => secret,
        // PKCS #8's own kind of section, or the header that OpenSSL wrote before there was one (RFC 1421 section 4.6.1.1).
        Err(_) if has(&bytes, "BEGIN ENCRYPTED PRIVATE KEY") || has(&bytes, "Proc-Type: 4,ENCRYPTED") => {
            bail!(
                "{key_flag} is encrypted: write it without its passphrase (openssl pkey -in FILE -out FILE)"
            )
        }
        Err(pem::Error::NoItemsFound) => {
            bail!("{key_flag} has no private key in it: a PEM file with \"BEGIN PRIVATE KEY\" is needed")
        }
        Err(error) => bail!("{key_flag} is damaged: {error}"),
    };
    match CertifiedKey::from_der(chain, secret, provider) {
        Ok(pair) => {
            if std::fs::metadata(key).is_ok_and(|about| about.mode() & 0o4 != 0) {
                tell!(
                    "onecopy proxy: {key_flag} has a mode that lets every user of this machine read it: chmod o-r it"
                );
            }
            Ok(pair)
        }
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            bail!("{key_flag} does not belong to the first certificate of {cert_flag}")
        }
        Err(Error::InvalidCertificate(why)) => bail!("{cert_flag} holds no valid certificate: {why:?}"),
        Err(why) => bail!("{key_flag} cannot be used: {why}"),
    }
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(certificates: &Path, key: &Path) -> String {
        format!("{:#}", Identity::open(certificates, key).unwrap_err())
    }

    #[test]
    fn each_bad_file_is_named_with_its_fault() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let write = |name: &str, text: &str| {
            std::fs::write(path(name), text).unwrap();
            path(name)
        };
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let cert = write("cert", &made.cert.pem());
        let key = write("key", &made.signing_key.serialize_pem());
        let identity = Identity::open(&cert, &key).unwrap();

        let missing = path("missing");
        assert!(said(&missing, &key).contains("--tls-cert") && said(&missing, &key).contains("No such file"));
        assert!(said(&cert, &missing).contains("--tls-key") && said(&cert, &missing).contains("missing"));
        assert!(said(&key, &key).contains("has no certificate in it"));
        assert!(said(&cert, &cert).contains("has no private key in it"));
        assert!(said(&cert, &write("empty", "")).contains("has no private key in it"));
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        assert!(said(&cert, &write("encrypted", encrypted)).contains("without its passphrase"));
        let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA \
                   PRIVATE KEY-----\n";
        assert!(said(&cert, &write("old", old)).contains("without its passphrase"));
        let foreign = write("foreign", &other.signing_key.serialize_pem());
        assert!(said(&cert, &foreign).contains("does not belong to the first certificate"));
        let noise = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(said(&write("noise", noise), &key).contains("no valid certificate"));
        let cut = &made.cert.pem()[..100];
        assert!(said(&write("cut", cut), &key).contains("cut"));
        let noise = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert!(said(&cert, &write("noise", noise)).contains("cannot be used"));
        assert!(said(dir.path(), &key).contains("directory"));

        // A reload that fails leaves what was there.
        let before = identity.settings();
        write("cert", "");
        assert!(identity.reload().is_err());
        assert!(Arc::ptr_eq(&identity.settings(), &before));
        write("cert", &other.cert.pem());
        write("key", &other.signing_key.serialize_pem());
        identity.reload().unwrap();
        assert!(!Arc::ptr_eq(&identity.settings(), &before));
    }
}
