//! TLS for `rediss://`: trust in servers, client certificates, and errors in words. Uses rustls
//! with ring, which needs only a C compiler to build.
//!
//! Without `ca=` the system's authorities apply (rustls-native-certs), which administrators and
//! updates maintain.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use lowtide_config::server::Tls;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore};

use crate::server::secret;

/// Trust in servers, and the client certificate.
#[derive(Debug)]
pub struct Trust {
    files: Tls,
    /// From the latest readable files.
    config: Mutex<Arc<ClientConfig>>,
}

impl Trust {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn of(tls: &Tls) -> Result<Trust, String> {
        // Independent of the working directory.
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let own = tls.own.as_ref().map(|(cert, key)| (absolute(cert), absolute(key)));
        Ok(Trust { files: Tls { ca: tls.ca.as_ref().map(absolute), own }, config: Mutex::new(read(tls)?) })
    }

    /// Whether there is a client certificate.
    pub fn has_own(&self) -> bool {
        self.files.own.is_some()
    }

    /// Begins a session with the server `name`, a host name or address. Reads the files anew, as
    /// certificates are renewed during a run; keeps the old ones if they are unreadable or do not
    /// match.
    ///
    /// # Errors
    /// `InvalidData`, with words: the name is invalid.
    pub fn session(&self, name: &str) -> io::Result<ClientConnection> {
        let nobody = || io::Error::new(ErrorKind::InvalidData, format!("no certificate can be for the host `{name}`"));
        let server = ServerName::try_from(name.to_owned()).map_err(|_| nobody())?;
        let now = read(&self.files);
        let mut config = self.config.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Ok(now) = now {
            *config = now;
        }
        ClientConnection::new(config.clone(), server).map_err(|error| said(&error, name))
    }
}

fn read(tls: &Tls) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            let about = |why: &str| format!("ca={}: {why}", path.display());
            for certificate in certificates(path).map_err(|why| about(&why))? {
                roots.add(certificate).map_err(|error| about(&format!("a certificate there is none ({error})")))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err("this system has no certificates of authorities (install ca-certificates), or name yours by \
                            ca=FILE"
                    .to_owned());
            }
        }
    }
    let provider = Arc::new(ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(|error| format!("TLS can't be had ({error})"))?.with_root_certificates(roots);
    let mut config = match &tls.own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates(cert).map_err(|why| format!("cert={}: {why}", cert.display()))?;
            let about = |why: &str| format!("key={}: {why}", key.display());
            let pem = secret(key).map_err(|why| about(&why))?;
            let private = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| {
                about(&match pem.contains("BEGIN ENCRYPTED PRIVATE KEY") {
                    true => "it is encrypted: decrypt it (`openssl pkey -in OLD -out NEW`)".to_owned(),
                    false => unread(error, "private key"),
                })
            })?;
            builder.with_client_auth_cert(chain, private).map_err(|error| about(&format!("it will not do ({error})")))?
        }
    };
    // A server may refuse a resumed session, and resumption skips the check of certificates.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    let all = all.map_err(|error| unread(error, "certificate"))?;
    if all.is_empty() { Err(unread(pem::Error::NoItemsFound, "certificate")) } else { Ok(all) }
}

/// Why a file could not be read.
fn unread(error: pem::Error, what: &str) -> String {
    match error {
        pem::Error::Io(error) => lowtide_config::reason(error),
        _ => format!("there is no {what} in it (PEM: -----BEGIN ...)"),
    }
}

/// The connection error for what is wrong with the server `name`.
pub fn said(error: &Error, name: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, words(error, name))
}

fn words(error: &Error, name: &str) -> String {
    use AlertDescription as Alert;
    match error {
        Error::InvalidCertificate(why) => of_certificate(why, name),
        Error::InvalidMessage(_) => "it does not speak TLS: if it has none, write redis://".to_owned(),
        Error::AlertReceived(Alert::CertificateRequired) => {
            "it wants a certificate of ours: name one by cert=FILE,key=FILE, or set its tls-auth-clients to no".to_owned()
        }
        Error::AlertReceived(
            why @ (Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied),
        ) => format!("it does not believe our certificate ({why:?})"),
        // An older TLS says this.
        Error::AlertReceived(Alert::HandshakeFailure) => {
            "it ends TLS (HandshakeFailure): if it wants a certificate of ours, name one by cert=FILE,key=FILE".to_owned()
        }
        Error::AlertReceived(why) => format!("it ends TLS ({why:?})"),
        other => format!("TLS fails ({other})"),
    }
}

fn of_certificate(why: &CertificateError, name: &str) -> String {
    match why {
        CertificateError::UnknownIssuer => {
            "its certificate is from no authority that is known here: name it by ca=FILE".to_owned()
        }
        CertificateError::BadSignature => {
            "its certificate is from another authority than the one of the same name that is known here: name it by ca=FILE"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("its certificate is not for `{name}`")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet: is the clock right?".to_owned()
        }
        other => {
            let text = format!("{other:?}");
            // `openssl req -x509` makes such certificates. rustls reports it by this name only.
            match text.contains("CaUsedAsEndEntity") {
                true => "its certificate is that of an authority (CA:TRUE): let it issue one for the server".to_owned(),
                false => format!("its certificate will not do ({text})"),
            }
        }
    }
}
